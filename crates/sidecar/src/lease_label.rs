//! Label values and names of the Lease objects that the sidecar stores its own data in.

/// Maximum length of a label's value.
pub(crate) const MAX_BYTES: usize = 63;

/// A text as a label's value: unchanged if it is valid, else its sanitized start and a hash.
pub(crate) fn label_value(text: &str) -> String {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if text.len() <= MAX_BYTES
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().last())
    {
        return text.to_owned();
    }
    let kept: String = text.chars().map(|c| if inner(c) { c } else { '-' }).take(40).collect();
    format!("x{kept}-{:016x}", fnv1a(text))
}

/// 64-bit FNV-1a: stable across releases, unlike the standard library's hash.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
