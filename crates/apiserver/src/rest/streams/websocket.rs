//! WebSocket (RFC 6455), limited to what kubectl uses: the handshake, and frames in both directions. No extensions.
//!
//! The size of a client's frames is limited, and each is forwarded before the next is read.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION};
use ring::digest;

/// The GUID that RFC 6455 appends to the client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The maximum payload of a frame; kubectl sends 32 KiB at a time.
const MAX_FRAME: usize = 1 << 20;

/// The Kubernetes subprotocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Binary channels, and a status at the end.
    V4,
    /// As V4; in addition the client can close a channel.
    V5,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }
}

/// The response to a client's handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    pub(super) accept: String,
    pub(super) protocol: Protocol,
}

/// Whether a header contains this token, ignoring case.
pub(super) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|present| present.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Validates a handshake. Selects the client's first offered protocol that is supported.
pub(super) fn handshake(headers: &HeaderMap) -> Result<Handshake, String> {
    if !has_token(headers, &SEC_WEBSOCKET_VERSION, "13") {
        return Err("only WebSocket version 13 is supported".into());
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).unwrap_or("").trim();
    if BASE64_STANDARD.decode(key).map_or(true, |bytes| bytes.len() != 16) {
        return Err("Sec-WebSocket-Key is not 16 bytes in base64".into());
    }
    let known =
        |name: &str| [Protocol::V5, Protocol::V4].into_iter().find(|protocol| protocol.name() == name);
    let Some(protocol) = tokens(headers, &SEC_WEBSOCKET_PROTOCOL).find_map(known) else {
        let offered: Vec<&str> = tokens(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
        return Err(format!(
            "none of the WebSocket protocols [{}] is supported: use v5.channel.k8s.io or v4.channel.k8s.io",
            offered.join(", ")
        ));
    };
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    Ok(Handshake { accept: BASE64_STANDARD.encode(hash), protocol })
}

/// A frame from the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A message or a fragment of one.
    Data {
        /// Whether this is the first fragment of a message.
        first: bool,
        payload: Bytes,
    },
    Ping(Bytes),
    Pong,
    Close,
}

/// The close code of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseCode {
    Normal = 1000,
    GoingAway = 1001,
    ProtocolError = 1002,
    TooLarge = 1009,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Decodes frames from a byte stream.
#[derive(Default)]
pub(super) struct Decoder {
    pub(super) buffer: BytesMut,
    /// A fragmented message is not complete yet.
    open: bool,
}

impl Decoder {
    /// The next frame; none if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, CloseCode> {
        let head = &self.buffer[..];
        let (&[first, second], rest) = match head.split_first_chunk::<2>() {
            Some(split) => split,
            None => return Ok(None),
        };
        let (last, opcode) = (first & 0x80 != 0, first & 0x0f);
        // No extension was negotiated that uses the reserved bits, and clients always mask.
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(CloseCode::ProtocolError);
        }
        let (length, extended) = match second & 0x7f {
            126 => match rest.first_chunk::<2>() {
                Some(bytes) => (usize::from(u16::from_be_bytes(*bytes)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk::<8>() {
                Some(bytes) => (usize::try_from(u64::from_be_bytes(*bytes)).unwrap_or(usize::MAX), 8),
                None => return Ok(None),
            },
            short => (usize::from(short), 0),
        };
        let is_control = opcode >= CLOSE;
        if is_control && (!last || extended != 0) {
            return Err(CloseCode::ProtocolError);
        }
        if length > MAX_FRAME {
            return Err(CloseCode::TooLarge);
        }
        let Some(mask) = rest[extended..].first_chunk::<4>().copied() else { return Ok(None) };
        if rest.len() < extended + 4 + length {
            return Ok(None);
        }
        self.buffer.advance(2 + extended + 4);
        let mut payload = self.buffer.split_to(length);
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        let payload = payload.freeze();
        match (opcode, self.open) {
            (TEXT | BINARY, false) | (CONTINUATION, true) => {
                self.open = !last;
                Ok(Some(Incoming::Data { first: opcode != CONTINUATION, payload }))
            }
            (PING, _) => Ok(Some(Incoming::Ping(payload))),
            (PONG, _) => Ok(Some(Incoming::Pong)),
            (CLOSE, _) => Ok(Some(Incoming::Close)),
            _ => Err(CloseCode::ProtocolError),
        }
    }
}

/// A frame to the client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A message on a channel.
    Data(u8, Bytes),
    Ping,
    Pong(Bytes),
    Close(CloseCode),
}

impl Outgoing {
    /// Encodes one frame. Servers do not mask.
    pub(super) fn frame(&self) -> Vec<u8> {
        let code_bytes;
        let (opcode, channel, payload): (u8, Option<u8>, &[u8]) = match self {
            Self::Data(channel, payload) => (BINARY, Some(*channel), payload),
            Self::Ping => (PING, None, &[]),
            Self::Pong(payload) => (PONG, None, payload),
            Self::Close(code) => {
                code_bytes = (*code as u16).to_be_bytes();
                (CLOSE, None, &code_bytes)
            }
        };
        let length = payload.len() + usize::from(channel.is_some());
        let mut frame = Vec::with_capacity(length + 10);
        frame.push(0x80 | opcode);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(length @ ..126), _) => frame.push(length),
            (_, Ok(length)) => {
                frame.push(126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.extend(channel);
        frame.extend_from_slice(payload);
        frame
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Encodes a client's frame.
    pub(in crate::rest::streams) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ ..126 => frame.push(0x80 | short as u8),
            length @ ..65_536 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        let mask = [1, 2, 3, 250];
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    fn data(first: bool, payload: &[u8]) -> Incoming {
        Incoming::Data { first, payload: Bytes::copy_from_slice(payload) }
    }

    /// Frames decode identically from one buffer and byte by byte.
    #[test]
    fn frames_are_decoded() {
        let long = vec![7; 70_000];
        let mut bytes = masked(0x82, b"\x00hi");
        bytes.extend(masked(0x02, b"\x00a"));
        bytes.extend(masked(0x89, b"are you there"));
        bytes.extend(masked(0x00, b"b"));
        bytes.extend(masked(0x80, &[8; 300]));
        bytes.extend(masked(0x81, &long));
        bytes.extend(masked(0x8a, b""));
        bytes.extend(masked(0x88, &[3, 232]));
        let expected = [
            data(true, b"\x00hi"),
            data(true, b"\x00a"),
            Incoming::Ping(Bytes::from_static(b"are you there")),
            data(false, b"b"),
            data(false, &[8; 300]),
            data(true, &long),
            Incoming::Pong,
            Incoming::Close,
        ];
        for piece in [1, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(piece) {
                decoder.buffer.extend_from_slice(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn invalid_frames_are_rejected() {
        let mut huge = vec![0x82, 0x80 | 127];
        huge.extend((MAX_FRAME as u64 + 1).to_be_bytes());
        for (bytes, code) in [
            (vec![0x82, 0x01, 7], CloseCode::ProtocolError),
            (masked(0xc2, b"compressed"), CloseCode::ProtocolError),
            (masked(0x80, b"continues nothing"), CloseCode::ProtocolError),
            ([masked(0x02, b"begun"), masked(0x82, b"again")].concat(), CloseCode::ProtocolError),
            (masked(0x09, b"a ping in parts"), CloseCode::ProtocolError),
            (masked(0x89, &[0; 126]), CloseCode::ProtocolError),
            (masked(0x83, b"unknown"), CloseCode::ProtocolError),
            (huge, CloseCode::TooLarge),
        ] {
            let mut decoder = Decoder::default();
            decoder.buffer.extend_from_slice(&bytes);
            let end = std::iter::from_fn(|| decoder.next().transpose()).find_map(Result::err);
            assert_eq!(end, Some(code), "{:?}", &bytes[..bytes.len().min(20)]);
        }
    }

    #[test]
    fn frames_are_encoded() {
        for (frame, head) in [
            (Outgoing::Data(1, Bytes::from_static(b"hi")), vec![0x82, 3, 1, b'h', b'i']),
            (Outgoing::Data(2, Bytes::from(vec![0; 125])), vec![0x82, 126, 0, 126, 2]),
            (Outgoing::Data(2, Bytes::from(vec![0; 65_535])), vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0, 2]),
            (Outgoing::Ping, vec![0x89, 0]),
            (Outgoing::Pong(Bytes::from_static(b"x")), vec![0x8a, 1, b'x']),
            (Outgoing::Close(CloseCode::Normal), vec![0x88, 2, 3, 232]),
        ] {
            assert_eq!(frame.frame()[..head.len()], head);
        }
    }

    fn offer(protocols: &str, key: &str, version: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
        headers.insert(SEC_WEBSOCKET_KEY, key.parse().unwrap());
        headers.insert(SEC_WEBSOCKET_VERSION, version.parse().unwrap());
        headers
    }

    /// The key and its response are the example of RFC 6455, section 1.3.
    #[test]
    fn handshake_selects_a_supported_protocol() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        let done = |protocol| Ok(Handshake { accept: "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into(), protocol });
        for (protocols, expected) in [
            ("v5.channel.k8s.io", done(Protocol::V5)),
            ("v4.channel.k8s.io, v5.channel.k8s.io", done(Protocol::V4)),
            ("channel.k8s.io,v4.channel.k8s.io", done(Protocol::V4)),
        ] {
            assert_eq!(handshake(&offer(protocols, KEY, "13")), expected, "{protocols}");
        }
        for headers in [
            offer("channel.k8s.io", KEY, "13"),
            offer("v5.channel.k8s.io", "short", "13"),
            offer("v5.channel.k8s.io", KEY, "8"),
        ] {
            handshake(&headers).unwrap_err();
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let mut decoder = Decoder::default();
            decoder.buffer.extend_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
