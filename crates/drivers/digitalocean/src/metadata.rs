//! The droplet's metadata service: this droplet's id and region.
//!
//! A request is tried a few times with a timeout of 2 seconds each. A response that is not an id or region is an error
//! at once.

use std::time::Duration;

use http::Uri;
use tokio::time::sleep;

use crate::backoff;
use crate::client::{WireError, get_text};

/// The address of the metadata service on every droplet.
pub const DEFAULT_URL: &str = "http://169.254.169.254";

const ONE_TRY: Duration = Duration::from_secs(2);
const TRIES: u32 = 4;

/// An error of the metadata service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The URL is invalid.
    #[error("{0:?} is not a valid metadata service URL: it must start with http:// and have a host")]
    Url(String),
    /// No successful response. Outside a droplet there is no metadata service.
    #[error(
        "failed to read {url} from the metadata service: {message}; outside a droplet, set the value with a flag"
    )]
    Silent {
        /// The requested URL.
        url: String,
        /// The cause.
        message: String,
    },
    /// The response has an unexpected value.
    #[error("the metadata service returned {response:?} at {url}, which is not a valid {wanted}")]
    Odd {
        /// The requested URL.
        url: String,
        /// The expected value.
        wanted: &'static str,
        /// The beginning of the response.
        response: String,
    },
}

/// The metadata service.
#[derive(Debug, Clone)]
pub struct Metadata {
    base: String,
}

impl Metadata {
    /// Makes no request.
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
                Ok(response) if response.status == 200 => {
                    return Ok((url, String::from_utf8_lossy(&response.body).trim().to_owned()));
                }
                Ok(response) => format!("HTTP {}", response.status),
                Err(WireError { message, .. }) => message,
            };
            failures += 1;
            if failures == TRIES {
                return Err(MetadataError::Silent { url, message });
            }
            sleep(backoff::exponential(Duration::from_millis(250), ONE_TRY, failures - 1, backoff::jitter()))
                .await;
        }
    }
}

fn odd(url: String, wanted: &'static str, response: &str) -> MetadataError {
    MetadataError::Odd { url, wanted, response: response.chars().take(60).collect() }
}
