//! Relative paths that cannot leave a share or enter its records.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of the driver's own directory in the root of each share. No volume path contains it.
pub const RECORDS: &str = ".wharf";

/// The longest name of one component, in bytes.
pub const MAX_COMPONENT: usize = 255;

/// The longest path, in bytes.
const MAX_PATH: usize = 1024;

/// A relative path in a share: one or more components, none of them `.`, `..` or `.wharf`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SharePath(String);

/// Why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path {path:?} {problem}")]
pub struct PathError {
    /// The path.
    pub path: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl SharePath {
    /// Validates a path. Slashes at both ends are removed, as csi-driver-nfs does.
    pub fn new(path: &str) -> Result<Self, PathError> {
        let refused = |problem| Err(PathError { path: path.to_owned(), problem });
        let trimmed = path.trim_matches('/');
        if trimmed.is_empty() {
            return refused("is empty: it must name a directory in the share");
        }
        if trimmed.len() > MAX_PATH {
            return refused("is longer than 1024 bytes");
        }
        for component in trimmed.split('/') {
            if let Err(problem) = check_component(component) {
                return refused(problem);
            }
        }
        Ok(Self(trimmed.to_owned()))
    }

    /// The path as text, without slashes at its ends.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path, relative to the share's root.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The directories above it, from the top; without the share's root.
    pub fn parents(&self) -> Vec<Self> {
        self.0.match_indices('/').map(|(end, _)| Self(self.0[..end].to_owned())).collect()
    }
}

/// Whether one component of a path is safe.
fn check_component(component: &str) -> Result<(), &'static str> {
    match component {
        "" => Err("has an empty component"),
        "." | ".." => Err("has a component \".\" or \"..\""),
        // On every level: a directory of the share can be an export of its own. In any case: file systems without case
        // distinction would take these for the same directory.
        _ if component.eq_ignore_ascii_case(RECORDS) => {
            Err("has a component .wharf, which holds the driver's records")
        }
        _ if component.len() > MAX_COMPONENT => Err("has a component of more than 255 bytes"),
        // `#` separates the parts of a handle; `\` separates components for Windows clients of the same share.
        _ if component.contains(['#', '\\']) => Err("has a character # or \\"),
        _ if component.chars().any(char::is_control) => Err("has a control character"),
        _ => Ok(()),
    }
}

impl fmt::Debug for SharePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SharePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SharePath {
    type Err = PathError;

    fn from_str(path: &str) -> Result<Self, PathError> {
        Self::new(path)
    }
}

impl TryFrom<String> for SharePath {
    type Error = PathError;

    fn try_from(path: String) -> Result<Self, PathError> {
        Self::new(&path)
    }
}

impl From<SharePath> for String {
    fn from(path: SharePath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_accepted_or_refused() {
        for (path, expected) in [
            ("a", Some("a")),
            ("/a/b/", Some("a/b")),
            ("..a", Some("..a")),
            ("...", Some("...")),
            (".hidden/x", Some(".hidden/x")),
            ("a/.wharf", None),
            ("a.wharf", Some("a.wharf")),
            ("ä b", Some("ä b")),
            ("", None),
            ("/", None),
            ("///", None),
            (".", None),
            ("..", None),
            ("a/..", None),
            ("a/../b", None),
            ("../a", None),
            ("./a", None),
            ("a//b", None),
            ("a/./b", None),
            (".wharf", None),
            ("/.wharf/volumes", None),
            (".WHARF", None),
            ("a\\..\\b", None),
            ("..\\x", None),
            ("a#b", None), // B4
            ("a\0b", None),
            ("a\nb", None),
        ] {
            assert_eq!(SharePath::new(path).ok().as_ref().map(SharePath::as_str), expected, "{path:?}");
        }
        assert!(SharePath::new(&"x".repeat(255)).is_ok() && SharePath::new(&"x".repeat(256)).is_err());
        assert!(SharePath::new(&"x/".repeat(600)).is_err());
        let parents = SharePath::new("a/b/c").unwrap().parents();
        assert_eq!(parents.iter().map(SharePath::as_str).collect::<Vec<_>>(), ["a", "a/b"]);
        assert!(serde_json::from_str::<SharePath>("\"../x\"").is_err());
    }
}
