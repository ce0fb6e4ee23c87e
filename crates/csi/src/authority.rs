//! Accepts clients on a unix socket that send the socket's path as `:authority`. Kubelet's plugin registration and newer
//! gRPC libraries send `%2Fvar%2Flib%2F…`, which is not a host name, and the HTTP/2 library rejects the request before
//! any of our code runs. The path carries no information, so [`AnyAuthority`] rewrites every authority to `unix`. It
//! passes all other bytes unchanged.
//!
//! The value is replaced in the compressed header block without tracking HPACK's dynamic table. That is safe because a
//! replacement never makes an entry larger: the reader's table holds at least the entries that the writer expects, at
//! the same indexes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// The replacement; no encoded path is shorter.
const AUTHORITY: &[u8] = b"unix";
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// More than our servers accept for one request; longer header blocks are an error.
const MAX_HEADER_BLOCK: usize = 64 << 10;
/// The frame size that every HTTP/2 implementation accepts.
const MAX_FRAME: usize = 16 << 10;

/// A server's connection over a unix socket that accepts any authority.
#[derive(Debug)]
pub struct AnyAuthority {
    stream: UnixStream,
    rewriter: Rewriter,
    /// Rewritten bytes that the server has not read yet.
    ready: Vec<u8>,
    consumed: usize,
}

impl AnyAuthority {
    /// Wraps an accepted connection.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, rewriter: Rewriter::default(), ready: Vec::new(), consumed: 0 }
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
        while this.consumed == this.ready.len() {
            this.ready.clear();
            this.consumed = 0;
            let mut bytes = [0; 8 << 10];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.feed(buffer.filled(), &mut this.ready)?;
        }
        let rest = &this.ready[this.consumed..];
        let count = rest.len().min(out.remaining());
        out.put_slice(&rest[..count]);
        this.consumed += count;
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

/// Splits the input into frames and rewrites those with header fields.
#[derive(Debug)]
struct Rewriter {
    /// Bytes to pass unchanged before the next frame begins.
    pass: usize,
    /// The start of a frame: its header, or the whole frame if it holds header fields.
    partial: Vec<u8>,
    /// A header block that continues in a later frame.
    block: Option<Block>,
}

/// A header block with the flags, stream and priority of its first frame.
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
            let needed = self.needed()?;
            let (next, rest) = bytes.split_at((needed - self.partial.len()).min(bytes.len()));
            self.partial.extend_from_slice(next);
            bytes = rest;
            // Once the frame header is complete, the rest of the frame may be needed too.
            if self.partial.len() == self.needed()? {
                self.frame(out)?;
            }
        }
        Ok(())
    }

    /// How many bytes of the frame are needed before it can be processed.
    fn needed(&self) -> io::Result<usize> {
        match self.partial.get(..FRAME_HEADER) {
            Some(&[a, b, c, HEADERS | CONTINUATION, ..]) => {
                let length = frame_length([a, b, c]);
                if length > MAX_FRAME {
                    return Err(malformed("frame with header fields is too long"));
                }
                Ok(FRAME_HEADER + length)
            }
            _ => Ok(FRAME_HEADER),
        }
    }

    /// Processes the frame, or frame header, in `partial`.
    fn frame(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let frame = std::mem::take(&mut self.partial);
        let &[a, b, c, kind, flags, s0, s1, s2, s3, ref payload @ ..] = frame.as_slice() else {
            return Err(malformed("incomplete frame header"));
        };
        match kind {
            HEADERS => {
                let (priority, fields) = split_headers_payload(flags, payload)?;
                let (priority, fields) = (priority.to_vec(), fields.to_vec());
                self.block = Some(Block { flags, stream: [s0, s1, s2, s3], priority, fields });
            }
            CONTINUATION => {
                let block = self
                    .block
                    .as_mut()
                    .ok_or_else(|| malformed("CONTINUATION frame without a preceding HEADERS frame"))?;
                block.fields.extend_from_slice(payload);
            }
            _ => {
                out.extend_from_slice(&frame);
                self.pass = frame_length([a, b, c]);
                return Ok(());
            }
        }
        if self.block.as_ref().is_some_and(|block| block.fields.len() > MAX_HEADER_BLOCK) {
            return Err(malformed("header block is too long"));
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
    /// Writes the block as frames, without padding.
    fn write(self, out: &mut Vec<u8>) -> io::Result<()> {
        let Self { flags, stream, mut priority, fields } = self;
        priority.extend(replace_authority(&fields)?);
        let mut pieces = priority.chunks(MAX_FRAME).peekable();
        let mut header = (HEADERS, flags & !(PADDED | END_HEADERS));
        loop {
            // A block without fields is passed on: the HTTP/2 library rejects it.
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

fn frame_length([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The priority and the fields of a HEADERS frame.
fn split_headers_payload(flags: u8, payload: &[u8]) -> io::Result<(&[u8], &[u8])> {
    let short = || malformed("HEADERS frame is too short");
    let mut rest = payload;
    if flags & PADDED != 0 {
        let (padding, padded) = rest.split_first().ok_or_else(short)?;
        let length = padded.len().checked_sub(usize::from(*padding)).ok_or_else(short)?;
        rest = &padded[..length];
    }
    let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
    rest.split_at_checked(priority).ok_or_else(short)
}

/// Replaces the value of every literal field named `:authority`, which is entry 1 of the static table. Other values
/// keep their encoding. A truncated block is malformed.
fn replace_authority(fields: &[u8]) -> io::Result<Vec<u8>> {
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
        let index = read_integer(&mut rest, bits)?;
        if literal {
            if index == 0 {
                skip_string(&mut rest)?;
            }
            let before = &begin[..begin.len() - rest.len()];
            let length = skip_string(&mut rest)?;
            // A shorter value is not a path and stays: entries of the reader's table must not become larger.
            if index == 1 && length >= AUTHORITY.len() {
                out.extend_from_slice(before);
                // The length is below 127 and the value is not Huffman-coded, so it takes one byte.
                out.push(AUTHORITY.len() as u8);
                out.extend_from_slice(AUTHORITY);
                continue;
            }
        }
        out.extend_from_slice(&begin[..begin.len() - rest.len()]);
    }
    Ok(out)
}

/// Reads an HPACK integer with a prefix of `bits` bits.
fn read_integer(rest: &mut &[u8], bits: u8) -> io::Result<usize> {
    let broken = || malformed("header block is truncated or has an integer that is too large");
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

/// Skips an HPACK string and returns its encoded length.
fn skip_string(rest: &mut &[u8]) -> io::Result<usize> {
    let length = read_integer(rest, 7)?;
    *rest = rest.get(length..).ok_or_else(|| malformed("header block is truncated"))?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame on stream 1.
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
    /// `:authority` with a path, with and without indexing, and the expected replacement.
    const PATH: &[u8] = b"\x41\x0f%2Frun%2Fa.sock";
    const UNIX: &[u8] = b"\x41\x04unix";
    const PATH_NOT_INDEXED: &[u8] = b"\x01\x0f%2Frun%2Fa.sock";
    const UNIX_NOT_INDEXED: &[u8] = b"\x01\x04unix";
    const SHORT: &[u8] = b"\x41\x01a";
    const HUFFMAN: &[u8] = b"\x41\x86\xa0\xe4\x1d\x13\x9d\x09";
    const OTHER: &[u8] = b"\x40\x02te\x08trailers";
    const SIZE: u8 = 0x3f;

    #[test]
    fn authorities_are_replaced_and_other_bytes_pass_unchanged() {
        let one = |flags, payload: &[u8]| vec![frame(HEADERS, flags, payload)];
        let data = frame(0, 1, b"\x41\x0f%2Frun%2Fa.sock and more");
        let big = [PATH, &[GET; 300]].concat();
        type Row = (&'static str, Vec<Vec<u8>>, Vec<Vec<u8>>);
        let rows: Vec<Row> = vec![
            ("a path", one(4, &[&[GET], PATH, OTHER].concat()), one(4, &[&[GET], UNIX, OTHER].concat())),
            ("not indexed", one(5, PATH_NOT_INDEXED), one(5, UNIX_NOT_INDEXED)),
            ("Huffman-coded", one(4, HUFFMAN), one(4, UNIX)),
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
    fn malformed_frames_close_the_connection() {
        let rows = [
            ("truncated value", frame(HEADERS, 4, &PATH[..7])),
            ("truncated integer", frame(HEADERS, 4, &[0x41, 0x7f, 0x80])),
            ("unterminated integer", frame(HEADERS, 4, &[0xff; 16])),
            ("more padding than frame", frame(HEADERS, 4 | PADDED, &[9, GET])),
            ("too short for the priority", frame(HEADERS, 4 | PRIORITY, &[1, 2])),
            ("continuation without headers", frame(CONTINUATION, 4, &[GET])),
            ("too long", vec![1, 0, 0, HEADERS, 4, 0, 0, 0, 1]),
        ];
        for (name, input) in rows {
            let error = rewritten(&[input], 1000).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}");
        }
        let endless = vec![vec![GET; MAX_FRAME]; 5];
        let mut frames: Vec<Vec<u8>> = endless.iter().map(|fields| frame(CONTINUATION, 0, fields)).collect();
        frames[0][3] = HEADERS;
        assert!(rewritten(&frames, 1000).is_err(), "unterminated header block");
    }

    #[test]
    fn long_header_blocks_are_split_into_frames() {
        let fields = vec![GET; MAX_FRAME];
        let frames = [frame(HEADERS, 0, &fields), frame(CONTINUATION, 4, &[GET, GET])];
        assert_eq!(rewritten(&frames, 1000).unwrap(), frames.concat());
    }
}
