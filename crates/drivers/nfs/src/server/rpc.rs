//! ONC RPC (RFC 5531) over TCP, as much as a call without credentials needs. Pure: bytes in, bytes out. The decoder accepts
//! any input and never allocates more than [`MAX_RECORD`].

/// The NFS program.
pub(super) const NFS_PROGRAM: u32 = 100_003;
/// rpcbind, the directory of programs.
pub(super) const RPCBIND_PROGRAM: u32 = 100_000;
/// The status monitor, rpc.statd.
pub(super) const STATD_PROGRAM: u32 = 100_024;

/// GETPORT of rpcbind version 2.
const GETPORT: u32 = 3;
const TCP: u32 = 6;

/// The longest response that is read: a NULL response has 24 bytes.
const MAX_RECORD: usize = 4096;
/// The longest verifier that RFC 5531 allows.
const MAX_VERIFIER: u32 = 400;

const LAST_FRAGMENT: u32 = 1 << 31;

/// A call without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    arguments: Vec<u32>,
}

impl Call {
    /// The NULL procedure of a program.
    pub(super) fn null(program: u32, version: u32) -> Self {
        Self { xid: xid(), program, version, procedure: 0, arguments: Vec::new() }
    }

    /// Asks rpcbind for the TCP port of a program; the result is 0 if it is not registered.
    pub(super) fn get_port(program: u32, version: u32) -> Self {
        let arguments = vec![program, version, TCP, 0];
        Self { xid: xid(), program: RPCBIND_PROGRAM, version: 2, procedure: GETPORT, arguments }
    }

    /// The call as one record of a TCP stream.
    pub(super) fn encode(&self) -> Vec<u8> {
        // xid, CALL, RPC version 2, program, version, procedure; credentials and verifier: AUTH_NONE, 0 bytes.
        let header = [self.xid, 0, 2, self.program, self.version, self.procedure, 0, 0, 0, 0];
        let words: Vec<u8> =
            header.iter().chain(&self.arguments).flat_map(|word| word.to_be_bytes()).collect();
        let length = u32::try_from(words.len()).unwrap_or(u32::MAX >> 1);
        let mut record = (length | LAST_FRAGMENT).to_be_bytes().to_vec();
        record.extend(words);
        record
    }
}

/// Distinguishes this call's response from a late one of another call. Each call has its own connection, so the value need
/// not be unpredictable.
fn xid() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0x5752_0001);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Why a response is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record is longer than any response.
    #[error("a record of more than {MAX_RECORD} bytes")]
    TooLong,
    /// The response ends early.
    #[error("the response is cut off")]
    Short,
    /// Not a response to our call.
    #[error("not the response to this call")]
    NotReply,
    /// A field has a value that RPC does not define.
    #[error("the response has an invalid field")]
    InvalidField,
}

/// Collects the fragments of one record.
#[derive(Debug, Default)]
pub(super) struct Record {
    received: Vec<u8>,
}

impl Record {
    /// Adds received bytes; returns the record once it is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, DecodeError> {
        self.received.extend_from_slice(bytes);
        let mut record = Vec::new();
        let mut rest = self.received.as_slice();
        while let Some((mark, tail)) = rest.split_first_chunk::<4>() {
            let mark = u32::from_be_bytes(*mark);
            let length = usize::try_from(mark & !LAST_FRAGMENT).map_err(|_| DecodeError::TooLong)?;
            if record.len() + length > MAX_RECORD {
                return Err(DecodeError::TooLong);
            }
            let Some((fragment, after)) = tail.split_at_checked(length) else { return Ok(None) };
            record.extend_from_slice(fragment);
            if mark & LAST_FRAGMENT != 0 {
                return Ok(Some(record));
            }
            rest = after;
        }
        // Only an endless series of short fragments gets here with much data.
        if self.received.len() > 4 * MAX_RECORD { Err(DecodeError::TooLong) } else { Ok(None) }
    }
}

/// Checks that a record is a response to the call, accepted or rejected, and returns its results, if there are any. A
/// rejection also proves that an RPC server is there.
pub(super) fn decode_reply(record: &[u8], xid: u32) -> Result<Vec<u8>, DecodeError> {
    let mut rest = record;
    let mut word = || -> Result<u32, DecodeError> {
        let (word, tail) = rest.split_first_chunk::<4>().ok_or(DecodeError::Short)?;
        rest = tail;
        Ok(u32::from_be_bytes(*word))
    };
    if word()? != xid || word()? != 1 {
        return Err(DecodeError::NotReply);
    }
    match word()? {
        // Accepted: verifier, then the status.
        0 => {
            word()?;
            let length = word()?;
            if length > MAX_VERIFIER {
                return Err(DecodeError::InvalidField);
            }
            for _ in 0..length.div_ceil(4) {
                word()?;
            }
            match word()? {
                0 => Ok(rest.to_vec()),
                1..=5 => Ok(Vec::new()),
                _ => Err(DecodeError::InvalidField),
            }
        }
        // Denied: RPC version or authentication.
        1 => match word()? {
            0 | 1 => Ok(Vec::new()),
            _ => Err(DecodeError::InvalidField),
        },
        _ => Err(DecodeError::InvalidField),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn null_call_is_encoded_as_in_the_rfc() {
        let call = Call { xid: 7, ..Call::null(NFS_PROGRAM, 4) };
        assert_eq!(call.encode(), bytes(&[LAST_FRAGMENT | 40, 7, 0, 2, 100_003, 4, 0, 0, 0, 0, 0]));
        let call = Call { xid: 7, ..Call::get_port(STATD_PROGRAM, 1) };
        assert_eq!(call.encode()[4 + 40..], bytes(&[100_024, 1, 6, 0]));
    }

    #[test]
    fn every_valid_response_is_accepted_and_everything_else_refused() {
        for (words, expected) in [
            (&[7, 1, 0, 0, 0, 0][..], Ok(vec![])),
            (&[7, 1, 0, 0, 0, 0, 42], Ok(bytes(&[42]))),
            (&[7, 1, 0, 6, 8, 1, 2, 0], Ok(vec![])),
            // Version mismatch with the supported range, procedure unavailable.
            (&[7, 1, 0, 0, 0, 2, 3, 3], Ok(vec![])),
            (&[7, 1, 0, 0, 0, 3], Ok(vec![])),
            // Denied: authentication.
            (&[7, 1, 1, 1, 5], Ok(vec![])),
            (&[8, 1, 0, 0, 0, 0], Err(DecodeError::NotReply)),
            (&[7, 0, 0, 0, 0, 0], Err(DecodeError::NotReply)),
            (&[7, 1, 2], Err(DecodeError::InvalidField)),
            (&[7, 1, 0, 0, 0, 9], Err(DecodeError::InvalidField)),
            (&[7, 1, 1, 2], Err(DecodeError::InvalidField)),
            (&[7, 1, 0, 0, 401], Err(DecodeError::InvalidField)),
            (&[7, 1, 0, 0, u32::MAX], Err(DecodeError::InvalidField)),
            (&[7, 1, 0, 0, 400], Err(DecodeError::Short)),
            (&[7], Err(DecodeError::Short)),
            (&[], Err(DecodeError::Short)),
        ] {
            assert_eq!(decode_reply(&bytes(words), 7), expected, "{words:?}");
        }
    }

    #[test]
    fn record_is_complete_after_its_last_fragment_however_it_arrives() {
        let mut stream = bytes(&[4, 0xAABB_CCDD]);
        stream.extend(bytes(&[LAST_FRAGMENT | 4, 1]));
        let mut record = Record::default();
        for (i, byte) in stream.iter().enumerate() {
            let complete = record.push(&[*byte]).unwrap();
            assert_eq!(complete.is_some(), i + 1 == stream.len());
            if let Some(complete) = complete {
                assert_eq!(complete, bytes(&[0xAABB_CCDD, 1]));
            }
        }
        assert_eq!(Record::default().push(&bytes(&[LAST_FRAGMENT | 5000])), Err(DecodeError::TooLong));
        assert_eq!(Record::default().push(b"HTTP/1.1 400 Bad Request\r\n"), Err(DecodeError::TooLong));
        assert_eq!(Record::default().push(&bytes(&[0; 5000])), Err(DecodeError::TooLong));
    }

    proptest::proptest! {
        /// Any bytes, in any pieces, result in a record, an error or a wait; never in a panic.
        #[test]
        fn arbitrary_bytes_never_panic(
            pieces in proptest::collection::vec(proptest::collection::vec(proptest::num::u8::ANY, 0..40), 0..20),
            xid in proptest::num::u32::ANY,
        ) {
            let mut record = Record::default();
            for piece in &pieces {
                match record.push(piece) {
                    Ok(Some(complete)) => { let _ = decode_reply(&complete, xid); break }
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            let _ = decode_reply(&pieces.concat(), xid);
        }
    }
}
