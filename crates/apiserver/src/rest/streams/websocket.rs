//! WebSocket (RFC 6455), as much of it as kubectl speaks: the handshake, and frames in and out. No extensions.
//!
//! Frames of a client are bounded: what it sends is on its way before the next is read.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION};
use ring::digest;

/// What RFC 6455 adds to a client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The most that one frame may bring; kubectl sends 32 KiB at a time.
const LARGEST: usize = 1 << 20;

/// Kubernetes' words on top of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Binary channels and a status at the end.
    V4,
    /// The same, and the client can say that a channel ends.
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

/// What is answered to a client's offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    pub(super) accept: String,
    pub(super) protocol: Protocol,
}

/// Whether a header lists this word, whatever its case.
pub(super) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|present| present.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The answer to a client that wants a WebSocket. Of the protocols that it offers, its first choice that we know.
pub(super) fn handshake(headers: &HeaderMap) -> Result<Handshake, String> {
    if !has_token(headers, &SEC_WEBSOCKET_VERSION, "13") {
        return Err("the only version of WebSocket that is served is 13".into());
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
            "none of the WebSocket protocols [{}] is served: v5.channel.k8s.io and v4.channel.k8s.io are",
            offered.join(", ")
        ));
    };
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    Ok(Handshake { accept: BASE64_STANDARD.encode(hash), protocol })
}

/// What a client sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A message, or a part of one.
    Data {
        /// Whether a message begins with it.
        first: bool,
        payload: Bytes,
    },
    Ping(Bytes),
    Pong,
    Close,
}

/// Why a connection is closed, by its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Done = 1000,
    GoingAway = 1001,
    Violation = 1002,
    TooLarge = 1009,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Frames out of bytes as they come.
#[derive(Default)]
pub(super) struct Decoder {
    pub(super) buffer: BytesMut,
    /// A message has begun and is not whole yet.
    open: bool,
}

impl Decoder {
    /// The next frame; none until more bytes are there.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, Why> {
        let head = &self.buffer[..];
        let (&[first, second], rest) = match head.split_first_chunk::<2>() {
            Some(split) => split,
            None => return Ok(None),
        };
        let (last, opcode) = (first & 0x80 != 0, first & 0x0f);
        // Nothing was agreed on that would give the reserved bits a meaning, and clients always mask.
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(Why::Violation);
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
            return Err(Why::Violation);
        }
        if length > LARGEST {
            return Err(Why::TooLarge);
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
            _ => Err(Why::Violation),
        }
    }
}

/// What we send.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A message of one channel.
    Data(u8, Bytes),
    Ping,
    Pong(Bytes),
    Close(Why),
}

impl Outgoing {
    /// As one frame, which a server does not mask.
    pub(super) fn frame(&self) -> Vec<u8> {
        let code;
        let (opcode, channel, payload): (u8, Option<u8>, &[u8]) = match self {
            Self::Data(channel, payload) => (BINARY, Some(*channel), payload),
            Self::Ping => (PING, None, &[]),
            Self::Pong(payload) => (PONG, None, payload),
            Self::Close(why) => {
                code = (*why as u16).to_be_bytes();
                (CLOSE, None, &code)
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

    /// A client's frame.
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

    /// Whole, and in pieces of one byte: the same frames.
    #[test]
    fn frames_in() {
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
    fn what_is_no_frame_of_a_client() {
        let mut huge = vec![0x82, 0x80 | 127];
        huge.extend((LARGEST as u64 + 1).to_be_bytes());
        for (bytes, why) in [
            (vec![0x82, 0x01, 7], Why::Violation),
            (masked(0xc2, b"compressed"), Why::Violation),
            (masked(0x80, b"continues nothing"), Why::Violation),
            ([masked(0x02, b"begun"), masked(0x82, b"again")].concat(), Why::Violation),
            (masked(0x09, b"a ping in parts"), Why::Violation),
            (masked(0x89, &[0; 126]), Why::Violation),
            (masked(0x83, b"unknown"), Why::Violation),
            (huge, Why::TooLarge),
        ] {
            let mut decoder = Decoder::default();
            decoder.buffer.extend_from_slice(&bytes);
            let end = std::iter::from_fn(|| decoder.next().transpose()).find_map(Result::err);
            assert_eq!(end, Some(why), "{:?}", &bytes[..bytes.len().min(20)]);
        }
    }

    #[test]
    fn frames_out() {
        for (frame, head) in [
            (Outgoing::Data(1, Bytes::from_static(b"hi")), vec![0x82, 3, 1, b'h', b'i']),
            (Outgoing::Data(2, Bytes::from(vec![0; 125])), vec![0x82, 126, 0, 126, 2]),
            (Outgoing::Data(2, Bytes::from(vec![0; 65_535])), vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0, 2]),
            (Outgoing::Ping, vec![0x89, 0]),
            (Outgoing::Pong(Bytes::from_static(b"x")), vec![0x8a, 1, b'x']),
            (Outgoing::Close(Why::Done), vec![0x88, 2, 3, 232]),
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

    /// The key and its answer are those of RFC 6455, 1.3.
    #[test]
    fn handshakes() {
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
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let mut decoder = Decoder::default();
            decoder.buffer.extend_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
