//! Where a CSI driver listens: a unix socket, and nothing else.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `sockaddr_un` holds 108 bytes including the terminating NUL.
const MAX_PATH: usize = 107;

/// The path of a unix socket, parsed from any of the forms that CSI drivers and sidecars accept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(PathBuf);

/// Why a string is not a valid endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The string does not name a unix socket.
    #[error("endpoint {0:?} is not a unix socket: write unix:///absolute/path, unix:path or /absolute/path")]
    NotUnixSocket(String),
    /// The path is longer than the kernel allows.
    #[error(
        "endpoint {path:?} has {length} bytes, but a unix socket path can have at most {MAX_PATH}: choose a shorter directory"
    )]
    TooLong {
        /// The path.
        path: String,
        /// Its length in bytes.
        length: usize,
    },
}

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::NotUnixSocket(text.to_owned());
        let path = match (text.strip_prefix("unix://"), text.strip_prefix("unix:")) {
            // Two slashes introduce an authority. A socket has none, so a third slash must follow.
            (Some(path), _) if path.starts_with('/') => path,
            (None, Some(path)) => path,
            (None, None) if text.starts_with('/') => text,
            _ => return Err(form()),
        };
        if path.is_empty() || path.ends_with('/') || path.contains('\0') {
            return Err(form());
        }
        if path.len() > MAX_PATH {
            return Err(EndpointError::TooLong { path: path.to_owned(), length: path.len() });
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.0.is_absolute() { "unix://" } else { "unix:" };
        write!(f, "{scheme}{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_urls_and_absolute_paths_are_accepted() {
        for (text, path, shown) in [
            ("unix:///run/csi.sock", "/run/csi.sock", "unix:///run/csi.sock"),
            ("unix:/run/csi.sock", "/run/csi.sock", "unix:///run/csi.sock"),
            ("unix:csi.sock", "csi.sock", "unix:csi.sock"),
            ("/run/csi.sock", "/run/csi.sock", "unix:///run/csi.sock"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.path(), Path::new(path), "{text}");
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(shown.parse(), Ok(endpoint));
        }
    }

    #[test]
    fn other_forms_are_rejected() {
        for text in [
            "",
            "unix:",
            "unix://",
            "unix:///",
            "unix://host/csi.sock",
            "unix://csi.sock",
            "csi.sock",
            "tcp://127.0.0.1:1",
            "http://x/",
            "/run/",
            "unix:/run/csi\0.sock",
            "UNIX:///run/csi.sock",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::NotUnixSocket(text.to_owned())));
        }
    }

    #[test]
    fn path_longer_than_the_kernel_limit_is_rejected() {
        let longest = format!("/{}", "x".repeat(MAX_PATH - 1));
        assert!(longest.parse::<Endpoint>().is_ok());
        let error = format!("unix://{longest}x").parse::<Endpoint>().unwrap_err();
        assert_eq!(error, EndpointError::TooLong { path: format!("{longest}x"), length: 108 });
    }
}
