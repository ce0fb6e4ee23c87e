//! Random names and UIDs.

/// Upstream's alphabet: it forms no words and has no ambiguous characters.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const LONGEST: usize = 63;

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness two objects could have the same UID: there is no safe fallback.
    wharf_model::system::fill_random(&mut bytes)
        .unwrap_or_else(|error| panic!("failed to read random bytes: {error}"));
    bytes
}

/// `metadata.uid`: a version 4 UUID.
pub(crate) fn uid() -> String {
    let mut bytes = bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = base16ct::lower::encode_string(&bytes);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A name from `metadata.generateName`. The prefix is truncated so that the name fits into a label.
pub(crate) fn name(prefix: &str) -> String {
    let mut end = prefix.len().min(LONGEST - SUFFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let suffix: String = bytes::<SUFFIX>()
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect();
    format!("{}{suffix}", &prefix[..end])
}

/// A random number between 0 and 1.
pub(crate) fn fraction() -> f64 {
    f64::from(u32::from_be_bytes(bytes())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_4() {
        let uid = uid();
        assert_eq!(uid.len(), 36);
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&uid[14..15], "4");
        assert!("89ab".contains(&uid[19..20]));
    }

    #[test]
    fn names_fit_into_a_label() {
        let name_of_pod = name("pod-");
        assert_eq!((name_of_pod.len(), &name_of_pod[..4]), (9, "pod-"));
        assert!(name_of_pod[4..].bytes().all(|byte| ALPHABET.contains(&byte)));
        assert_eq!(name(&"x".repeat(200)).len(), 63);
        assert!(name(&"ü".repeat(200)).len() <= 63);
    }
}
