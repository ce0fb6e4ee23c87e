//! The droplet's metadata service: who and where this machine is.
//!
//! Promise: asked a few times with 2 seconds each, then it is an error; an answer that is no id or no region is
//! an error at once.

use std::time::Duration;

use http::Uri;
use tokio::time::sleep;

use crate::chance;
use crate::client::{WireError, get_text};

/// Where every droplet finds it.
pub const DEFAULT_URL: &str = "http://169.254.169.254";

const ONE_TRY: Duration = Duration::from_secs(2);
const TRIES: u32 = 4;

/// Why the metadata service could not tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The URL is none that could be asked.
    #[error("{0:?} is no URL of a metadata service: it must begin with http:// and name a host")]
    Url(String),
    /// No answer, or one that is no success. Outside a droplet there is no such service.
    #[error("the metadata service does not tell at {url}: {message}; outside a droplet, say it with a flag")]
    Silent {
        /// What was asked.
        url: String,
        /// What happened.
        message: String,
    },
    /// Something else was answered.
    #[error("the metadata service answered {answer:?} at {url}, which is no {wanted}")]
    Odd {
        /// What was asked.
        url: String,
        /// What was wanted.
        wanted: &'static str,
        /// The beginning of what came.
        answer: String,
    },
}

/// The metadata service.
#[derive(Debug, Clone)]
pub struct Metadata {
    base: String,
}

impl Metadata {
    /// Asks nothing yet.
    pub fn new(url: &str) -> Result<Self, MetadataError> {
        let wrong = || MetadataError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(wrong());
        }
        Ok(Self { base: url.trim_end_matches('/').to_owned() })
    }

    /// This droplet's id.
    pub async fn droplet_id(&self) -> Result<u64, MetadataError> {
        let (url, text) = self.text("id").await?;
        text.parse().ok().filter(|id| *id > 0).ok_or_else(|| odd(url, "droplet id", &text))
    }

    /// The slug of this droplet's region.
    pub async fn region(&self) -> Result<String, MetadataError> {
        let (url, text) = self.text("region").await?;
        let slug = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || !text.bytes().all(slug) {
            return Err(odd(url, "region", &text));
        }
        Ok(text)
    }

    async fn text(&self, name: &str) -> Result<(String, String), MetadataError> {
        let url = format!("{}/metadata/v1/{name}", self.base);
        let uri: Uri = url.parse().map_err(|_| MetadataError::Url(self.base.clone()))?;
        let mut failures = 0;
        loop {
            let message = match get_text(uri.clone(), ONE_TRY).await {
                Ok(answer) if answer.status == 200 => {
                    return Ok((url, String::from_utf8_lossy(&answer.body).trim().to_owned()));
                }
                Ok(answer) => format!("HTTP {}", answer.status),
                Err(WireError { message, .. }) => message,
            };
            failures += 1;
            if failures == TRIES {
                return Err(MetadataError::Silent { url, message });
            }
            sleep(chance::exponential(Duration::from_millis(250), ONE_TRY, failures - 1, chance::jitter()))
                .await;
        }
    }
}

fn odd(url: String, wanted: &'static str, answer: &str) -> MetadataError {
    MetadataError::Odd { url, wanted, answer: answer.chars().take(60).collect() }
}
