//! Base64 as Go decodes it: padded, ignoring line breaks and the unused bits of the last digit.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Re-encodes base64 as Go would, or returns the position of the first invalid byte.
pub(super) fn canonical(text: &str) -> Result<String, usize> {
    let mut out = String::with_capacity(text.len());
    let mut bytes = text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let end = text.len();
    while let Some((at, byte)) = bytes.next() {
        match (byte, out.len() % 4) {
            (b'=', padded @ (2 | 3)) => {
                // Clear the unused bits of the last digit.
                let mask = if padded == 2 { 0b11_0000 } else { 0b11_1100 };
                let last =
                    out.pop().and_then(|last| digit(u8::try_from(last).ok()?)).unwrap_or_default() & mask;
                out.push(char::from(ALPHABET[usize::from(last)]));
                out.push('=');
                if padded == 2 {
                    match bytes.next() {
                        Some((_, b'=')) => out.push('='),
                        Some((at, _)) => return Err(at),
                        None => return Err(end),
                    }
                }
                return bytes.next().map_or(Ok(out), |(at, _)| Err(at));
            }
            (byte, _) if digit(byte).is_some() => out.push(char::from(byte)),
            _ => return Err(at),
        }
    }
    // Go reports the start of the incomplete group.
    if out.len().is_multiple_of(4) { Ok(out) } else { Err(end - out.len() % 4) }
}
