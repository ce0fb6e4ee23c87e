//! New UUIDs for pools and for file systems.

use std::path::Path;

/// A random UUID (version 4), lower case with dashes.
pub(crate) fn random() -> wharf_linux::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| wharf_linux::Error::State {
        path: Path::new("/dev/urandom").to_owned(),
        reason: format!("no random bytes: {error}"),
    })?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn shape() {
        let uuid = super::random().unwrap();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4');
        assert!(matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
        assert_ne!(uuid, super::random().unwrap());
    }
}
