//! What stands in the place of secrets when a message is printed.

use std::fmt;

/// So many secrets, none of them shown.
pub(crate) struct Redacted(pub(crate) usize);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            n => write!(f, "<{n} redacted>"),
        }
    }
}
