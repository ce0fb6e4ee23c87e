//! Callers over a unix socket whose `:authority` is the socket's path, let in: kubelet's plugin registration
//! and newer gRPC libraries send `%2Fvar%2Flib%2F…`, which is no host name, and the HTTP/2 library refuses the
//! request before any of our code sees it. The path says nothing that the socket does not, so a wrapped
//! connection reads every authority as `unix`. All other bytes pass as they are.
//!
//! The value is replaced in the compressed header block, without following its dynamic table: an entry there
//! is only ever made smaller, so the reader keeps at least the entries that the writer counts on, at the
//! same indexes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// What the authority becomes; no encoded path is shorter.
const AUTHORITY: &[u8] = b"unix";
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// More than our servers accept of one request; nothing longer is kept.
const LONGEST_BLOCK: usize = 64 << 10;
/// What every reader of HTTP/2 accepts.
const LONGEST_FRAME: usize = 16 << 10;

/// A server's connection over a unix socket that takes any authority.
#[derive(Debug)]
pub struct AnyAuthority {
    stream: UnixStream,
    rewriter: Rewriter,
    /// Rewritten, not yet read.
    ready: Vec<u8>,
    taken: usize,
}

impl AnyAuthority {
    /// Wraps an accepted connection.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, rewriter: Rewriter::default(), ready: Vec::new(), taken: 0 }
    }
}

impl Connected for AnyAuthority {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for AnyAuthority {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.taken == this.ready.len() {
            this.ready.clear();
            this.taken = 0;
            let mut bytes = [0; 8 << 10];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.feed(buffer.filled(), &mut this.ready)?;
        }
        let rest = &this.ready[this.taken..];
        let count = rest.len().min(out.remaining());
        out.put_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AnyAuthority {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// What comes in, cut into frames.
#[derive(Debug)]
struct Rewriter {
    /// Bytes that pass as they are before the next frame begins.
    pass: usize,
    /// The beginning of a frame that is looked at as a whole: its header, or all of it if it holds fields.
    partial: Vec<u8>,
    /// A header block whose end is in a later frame.
    block: Option<Block>,
}

/// A header block, and its first frame's flags, stream and priority.
#[derive(Debug)]
struct Block {
    flags: u8,
    stream: [u8; 4],
    priority: Vec<u8>,
    fields: Vec<u8>,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self { pass: PREFACE, partial: Vec::new(), block: None }
    }
}

impl Rewriter {
    fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.pass > 0 {
                let (passing, rest) = bytes.split_at(self.pass.min(bytes.len()));
                out.extend_from_slice(passing);
                self.pass -= passing.len();
                bytes = rest;
                continue;
            }
            let wanted = self.wanted()?;
            let (next, rest) = bytes.split_at((wanted - self.partial.len()).min(bytes.len()));
            self.partial.extend_from_slice(next);
            bytes = rest;
            // A header that has just become complete may ask for the rest of its frame.
            if self.partial.len() == self.wanted()? {
                self.frame(out)?;
            }
        }
        Ok(())
    }

    /// How many bytes of the frame there must be before it is looked at.
    fn wanted(&self) -> io::Result<usize> {
        match self.partial.get(..FRAME_HEADER) {
            Some(&[a, b, c, HEADERS | CONTINUATION, ..]) => {
                let length = length_of([a, b, c]);
                if length > LONGEST_FRAME {
                    return Err(malformed("a frame of header fields is too long"));
                }
                Ok(FRAME_HEADER + length)
            }
            _ => Ok(FRAME_HEADER),
        }
    }

    /// Deals with the frame, or the header of one, that is in `partial`.
    fn frame(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let frame = std::mem::take(&mut self.partial);
        let &[a, b, c, kind, flags, s0, s1, s2, s3, ref payload @ ..] = frame.as_slice() else {
            return Err(malformed("a frame without its header"));
        };
        match kind {
            HEADERS => {
                let (priority, fields) = fields_of(flags, payload)?;
                let (priority, fields) = (priority.to_vec(), fields.to_vec());
                self.block = Some(Block { flags, stream: [s0, s1, s2, s3], priority, fields });
            }
            CONTINUATION => {
                let block = self.block.as_mut().ok_or_else(|| malformed("nothing to continue"))?;
                block.fields.extend_from_slice(payload);
            }
            _ => {
                out.extend_from_slice(&frame);
                self.pass = length_of([a, b, c]);
                return Ok(());
            }
        }
        if self.block.as_ref().is_some_and(|block| block.fields.len() > LONGEST_BLOCK) {
            return Err(malformed("a header block is too long"));
        }
        if flags & END_HEADERS != 0
            && let Some(block) = self.block.take()
        {
            block.write(out)?;
        }
        Ok(())
    }
}

impl Block {
    /// As frames again, without padding.
    fn write(self, out: &mut Vec<u8>) -> io::Result<()> {
        let Self { flags, stream, mut priority, fields } = self;
        priority.extend(with_our_authority(&fields)?);
        let mut pieces = priority.chunks(LONGEST_FRAME).peekable();
        let mut header = (HEADERS, flags & !(PADDED | END_HEADERS));
        loop {
            // A block without any field is refused by those who read it, not by us.
            let piece = pieces.next().unwrap_or_default();
            let last = pieces.peek().is_none();
            let (kind, flags) = header;
            let [_, a, b, c] = u32::try_from(piece.len()).unwrap_or(u32::MAX).to_be_bytes();
            out.extend([a, b, c, kind, if last { flags | END_HEADERS } else { flags }]);
            out.extend(stream);
            out.extend(piece);
            if last {
                return Ok(());
            }
            header = (CONTINUATION, 0);
        }
    }
}

fn length_of([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The priority and the fields of a HEADERS frame.
fn fields_of(flags: u8, payload: &[u8]) -> io::Result<(&[u8], &[u8])> {
    let short = || malformed("a HEADERS frame is too short");
    let mut rest = payload;
    if flags & PADDED != 0 {
        let (padding, padded) = rest.split_first().ok_or_else(short)?;
        let length = padded.len().checked_sub(usize::from(*padding)).ok_or_else(short)?;
        rest = &padded[..length];
    }
    let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
    rest.split_at_checked(priority).ok_or_else(short)
}

/// A header block with another value wherever a literal field has the name `:authority`, which is the first
/// of the static table. Values stay in their coding; a block that breaks off is malformed.
fn with_our_authority(fields: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(fields.len());
    let mut rest = fields;
    while let Some(&first) = rest.first() {
        let begin = rest;
        let (bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = integer(&mut rest, bits)?;
        if literal {
            if index == 0 {
                string(&mut rest)?;
            }
            let before = &begin[..begin.len() - rest.len()];
            let length = string(&mut rest)?;
            // A shorter one is no path, and stays: entries of the reader's table must not become larger.
            if index == 1 && length >= AUTHORITY.len() {
                out.extend_from_slice(before);
                // Less than 127, and not Huffman's code: one byte.
                out.push(AUTHORITY.len() as u8);
                out.extend_from_slice(AUTHORITY);
                continue;
            }
        }
        out.extend_from_slice(&begin[..begin.len() - rest.len()]);
    }
    Ok(out)
}

/// Takes an integer whose first byte has this many bits for it.
fn integer(rest: &mut &[u8], bits: u8) -> io::Result<usize> {
    let broken = || malformed("a header block breaks off, or has too large a number");
    let mask = (1 << bits) - 1;
    let (first, mut tail) = rest.split_first().ok_or_else(broken)?;
    let mut value = usize::from(first & mask);
    if first & mask == mask {
        for shift in [0, 7, 14, 21, 28] {
            let (byte, after) = tail.split_first().ok_or_else(broken)?;
            tail = after;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *rest = tail;
                return Ok(value);
            }
        }
        return Err(broken());
    }
    *rest = tail;
    Ok(value)
}

/// Takes a string and returns how many bytes it has in its coding.
fn string(rest: &mut &[u8]) -> io::Result<usize> {
    let length = integer(rest, 7)?;
    *rest = rest.get(length..).ok_or_else(|| malformed("a header block breaks off"))?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of this kind, with these flags, on stream 1.
    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, (payload.len() >> 8) as u8, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        bytes.extend(payload);
        bytes
    }

    fn rewritten(frames: &[Vec<u8>], piece: usize) -> io::Result<Vec<u8>> {
        let mut input = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        input.extend(frames.concat());
        let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
        for piece in input.chunks(piece) {
            rewriter.feed(piece, &mut out)?;
        }
        Ok(out.split_off(PREFACE))
    }

    const GET: u8 = 0x82;
    /// `:authority` with a path, with and without entering the table, and as it must become.
    const PATH: &[u8] = b"\x41\x0f%2Frun%2Fa.sock";
    const UNIX: &[u8] = b"\x41\x04unix";
    const PATH_NOT_INDEXED: &[u8] = b"\x01\x0f%2Frun%2Fa.sock";
    const UNIX_NOT_INDEXED: &[u8] = b"\x01\x04unix";
    const SHORT: &[u8] = b"\x41\x01a";
    const HUFFMAN: &[u8] = b"\x41\x86\xa0\xe4\x1d\x13\x9d\x09";
    const OTHER: &[u8] = b"\x40\x02te\x08trailers";
    const SIZE: u8 = 0x3f;

    #[test]
    fn authorities_are_replaced_and_all_else_passes() {
        let one = |flags, payload: &[u8]| vec![frame(HEADERS, flags, payload)];
        let data = frame(0, 1, b"\x41\x0f%2Frun%2Fa.sock and more");
        let big = [PATH, &[GET; 300]].concat();
        type Row = (&'static str, Vec<Vec<u8>>, Vec<Vec<u8>>);
        let rows: Vec<Row> = vec![
            ("a path", one(4, &[&[GET], PATH, OTHER].concat()), one(4, &[&[GET], UNIX, OTHER].concat())),
            ("not indexed", one(5, PATH_NOT_INDEXED), one(5, UNIX_NOT_INDEXED)),
            ("in Huffman's code", one(4, HUFFMAN), one(4, UNIX)),
            ("twice", one(4, &[PATH, PATH].concat()), one(4, &[UNIX, UNIX].concat())),
            ("too short to be a path", one(4, SHORT), one(4, SHORT)),
            ("none", one(4, &[&[GET], OTHER].concat()), one(4, &[&[GET], OTHER].concat())),
            (
                "a size update first",
                one(4, &[&[SIZE, 0xe1, 0x1f], PATH].concat()),
                one(4, &[&[SIZE, 0xe1, 0x1f], UNIX].concat()),
            ),
            ("padded", one(4 | PADDED, &[&[3], PATH, &[0, 0, 0]].concat()), one(4, UNIX)),
            (
                "with priority",
                one(4 | PRIORITY, &[b"prior", PATH].concat()),
                one(4 | PRIORITY, &[b"prior", UNIX].concat()),
            ),
            (
                "continued, in the middle of the value",
                vec![frame(HEADERS, 1, &PATH[..7]), frame(CONTINUATION, 4, &PATH[7..])],
                one(5, UNIX),
            ),
            ("other frames", vec![data.clone(), frame(4, 0, &[])], vec![data.clone(), frame(4, 0, &[])]),
            (
                "between them",
                [vec![data.clone()], one(4, PATH), vec![data.clone()]].concat(),
                [vec![data.clone()], one(4, UNIX), vec![data]].concat(),
            ),
            ("more than one byte of length", one(4, &big), one(4, &[UNIX, &[GET; 300]].concat())),
        ];
        for (name, input, expected) in rows {
            for piece in [1, 2, 7, 1000] {
                assert_eq!(
                    rewritten(&input, piece).unwrap(),
                    expected.concat(),
                    "{name}, in pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn nonsense_ends_the_connection() {
        let rows = [
            ("breaks off in a value", frame(HEADERS, 4, &PATH[..7])),
            ("breaks off in a number", frame(HEADERS, 4, &[0x41, 0x7f, 0x80])),
            ("a number without end", frame(HEADERS, 4, &[0xff; 16])),
            ("more padding than frame", frame(HEADERS, 4 | PADDED, &[9, GET])),
            ("no room for the priority", frame(HEADERS, 4 | PRIORITY, &[1, 2])),
            ("continues nothing", frame(CONTINUATION, 4, &[GET])),
            ("too long", vec![1, 0, 0, HEADERS, 4, 0, 0, 0, 1]),
        ];
        for (name, input) in rows {
            let error = rewritten(&[input], 1000).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}");
        }
        let endless = vec![vec![GET; LONGEST_FRAME]; 5];
        let mut frames: Vec<Vec<u8>> = endless.iter().map(|fields| frame(CONTINUATION, 0, fields)).collect();
        frames[0][3] = HEADERS;
        assert!(rewritten(&frames, 1000).is_err(), "a block without end");
    }

    #[test]
    fn long_blocks_are_cut_into_frames_again() {
        let fields = vec![GET; LONGEST_FRAME];
        let frames = [frame(HEADERS, 0, &fields), frame(CONTINUATION, 4, &[GET, GET])];
        assert_eq!(rewritten(&frames, 1000).unwrap(), frames.concat());
    }
}
