//! The API token: a fixed value, or a file that can be replaced at any time.
//!
//! The token never appears in Debug output, logs or errors. The file is read for every request, so a rotated token
//! works at once. While the file is unreadable or empty, the last valid token is used.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;

/// A source of the API token; clones share it.
#[derive(Clone)]
pub struct Token {
    file: Option<PathBuf>,
    last: Arc<Mutex<HeaderValue>>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "Token(from {})", file.display()),
            None => write!(f, "Token(fixed)"),
        }
    }
}

/// Why a token could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("failed to read the API token from {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The value is empty or has invalid characters.
    #[error("{place} does not contain a valid API token: it is empty or has invalid characters")]
    Unusable {
        /// The file, or "the value given".
        place: String,
    },
}

impl Token {
    /// A token that does not change.
    pub fn fixed(value: &str) -> Result<Self, TokenError> {
        let header =
            header(value).ok_or_else(|| TokenError::Unusable { place: "the value given".to_owned() })?;
        Ok(Self { file: None, last: Arc::new(Mutex::new(header)) })
    }

    /// A token in a file, which must exist.
    pub fn file(file: impl Into<PathBuf>) -> Result<Self, TokenError> {
        let file = file.into();
        let text = std::fs::read_to_string(&file);
        let text = text.map_err(|source| TokenError::Read { file: file.clone(), source })?;
        let header =
            header(&text).ok_or_else(|| TokenError::Unusable { place: file.display().to_string() })?;
        Ok(Self { file: Some(file), last: Arc::new(Mutex::new(header)) })
    }

    /// The current value of the Authorization header.
    pub(crate) async fn header(&self) -> HeaderValue {
        if let Some(file) = &self.file {
            match tokio::fs::read_to_string(file).await {
                Ok(text) => match header(&text) {
                    Some(header) => self.keep(header),
                    None => {
                        tracing::warn!(path = %file.display(), "file contains no valid API token; using the last valid one")
                    }
                },
                Err(error) => {
                    tracing::warn!(path = %file.display(), %error, "failed to read the API token; using the last valid one");
                }
            }
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, header: HeaderValue) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = header;
    }
}

fn header(text: &str) -> Option<HeaderValue> {
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_must_be_printable_ascii() {
        for (text, good) in [
            ("dop_v1_abc", true),
            (" abc\n", true),
            ("", false),
            (" \n", false),
            ("a b", false),
            ("a\nb", false),
            ("ä", false),
        ] {
            assert_eq!(Token::fixed(text).is_ok(), good, "{text:?}");
        }
    }

    #[tokio::test]
    async fn token_follows_its_file_and_falls_back_to_the_last_valid_one() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("token");
        assert!(matches!(Token::file(&file), Err(TokenError::Read { .. })));
        std::fs::write(&file, "hunter2\n").unwrap();
        let token = Token::file(&file).unwrap();
        assert_eq!(token.header().await, "Bearer hunter2");
        std::fs::write(&file, "hunter3").unwrap();
        assert_eq!(token.header().await, "Bearer hunter3");
        std::fs::write(&file, "").unwrap();
        assert_eq!(token.header().await, "Bearer hunter3");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(token.header().await, "Bearer hunter3");
        let shown = format!("{token:?} {:?}", token.header().await);
        assert!(!shown.contains("hunter"), "{shown}");
    }
}
