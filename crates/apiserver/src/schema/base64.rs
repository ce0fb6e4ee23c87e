//! Base64 as Go decodes it: padded, ignoring line breaks and the unused bits of the last digit.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

const GO: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Re-encodes base64 as Go would, or returns the position of the first invalid byte.
pub(super) fn canonical(text: &str) -> Result<String, usize> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !is_line_break(*byte)).collect();
    match GO.decode(digits) {
        Ok(bytes) => Ok(GO.encode(bytes)),
        Err(_) => Err(first_invalid(text)),
    }
}

/// The position that Go reports for an invalid text.
fn first_invalid(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().filter(|(_, byte)| !is_line_break(*byte));
    let (mut digits, end) = (0, text.len());
    while let Some((at, byte)) = bytes.next() {
        match (byte, digits % 4) {
            (b'=', 2) => {
                let second = bytes.next();
                let invalid = if let Some((_, b'=')) = second { bytes.next() } else { second };
                return invalid.map_or(end, |(at, _)| at);
            }
            (b'=', 3) => return bytes.next().map_or(end, |(at, _)| at),
            (b'+' | b'/', _) => digits += 1,
            (byte, _) if byte.is_ascii_alphanumeric() => digits += 1,
            _ => return at,
        }
    }
    // Go reports the start of the incomplete group.
    end - digits % 4
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
