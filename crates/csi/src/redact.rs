//! The placeholder that replaces secrets in the `Debug` output of a message.

use std::fmt;

/// Prints the number of secrets, and none of their values.
pub(crate) struct Redacted(pub(crate) usize);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            n => write!(f, "<{n} redacted>"),
        }
    }
}
