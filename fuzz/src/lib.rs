//! What several targets share: an API server and a CSI driver in memory.

pub mod api;
pub mod csi;
pub mod kernel;

/// Splits an input into pieces: a byte that says what a piece is, a byte with its length, and its bytes. The last piece may
/// be shorter than its length says.
pub fn pieces(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [what, length, rest @ ..] = data else { return None };
        let (piece, rest) = rest.split_at((*length as usize).min(rest.len()));
        data = rest;
        Some((*what, piece))
    })
}

/// Checks that a value that is read and written again reads the same: `rewrite(rewrite(x)) == rewrite(x)`.
pub fn assert_stable(bytes: &[u8], rewrite: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    if let Some(written) = rewrite(bytes) {
        assert_eq!(
            rewrite(&written).as_deref().map(String::from_utf8_lossy),
            Some(String::from_utf8_lossy(&written)),
        );
    }
}
