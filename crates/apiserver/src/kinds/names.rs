//! What may be a name.

/// A DNS subdomain: labels with dots between them, 253 characters.
pub(super) fn subdomain(_name: &str, _is_prefix: bool) -> Vec<String> {
    Vec::new()
}
