//! Reads a sidecar's `/debug/attempts` page: what it last tried for each object.

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Duration, timeout};
use wharf_model::Time;

const TIMEOUT: Duration = Duration::from_secs(3);
/// The page is bounded, so a longer response is not the page.
const LIMIT: u64 = 8 << 20;

/// One attempt of a role on an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// The role that tried.
    pub role: String,
    /// The object: its key, or its name or UID where the role uses that.
    pub object: String,
    /// When it was tried.
    pub time: Option<Time>,
    /// The step, most often a CSI method.
    pub step: String,
    /// The error; `None` if it succeeded.
    pub error: Option<String>,
    /// Consecutive failures.
    pub failures: u64,
}

/// Reads the page at `address`, such as `127.0.0.1:9808` or `unix:///run/metrics.sock`.
pub(crate) async fn read(address: &str) -> Result<Vec<Attempt>, String> {
    let request = async {
        match address.strip_prefix("unix://") {
            Some(path) => fetch(UnixStream::connect(path).await?, "localhost").await,
            None => {
                let address = address.trim_start_matches("http://").trim_end_matches('/');
                fetch(TcpStream::connect(address).await?, address).await
            }
        }
    };
    let response = match timeout(TIMEOUT, request).await {
        Ok(response) => response.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no response within {} s", TIMEOUT.as_secs())),
    };
    parse(&response)
}

async fn fetch(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str) -> std::io::Result<String> {
    let request = format!("GET /debug/attempts HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.take(LIMIT).read_to_string(&mut response).await?;
    Ok(response)
}

fn parse(response: &str) -> Result<Vec<Attempt>, String> {
    let (head, body) = response.split_once("\r\n\r\n").ok_or("not an HTTP response")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(head.lines().next().unwrap_or_default().to_owned());
    }
    // In a chunked response the chunk headers are separate lines around one JSON array.
    let no_array = "the response is not a JSON array";
    let (from, to) = (body.find('[').ok_or(no_array)?, body.rfind(']').ok_or(no_array)?);
    serde_json::from_str(body.get(from..=to).ok_or(no_array)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_page_is_parsed() {
        let page = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n[{\"role\": \"attacher\", \"object\": \"a\", \
                    \"time\": \"2026-11-15T10:00:00Z\", \"step\": \"ControllerPublishVolume\", \"error\": \"no\", \
                    \"failures\": 2}]\n";
        let read = parse(page).unwrap();
        assert_eq!((read[0].role.as_str(), read[0].failures), ("attacher", 2));
        assert!(parse("HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(parse("HTTP/1.1 200 OK\r\n\r\n] [").is_err());
        assert!(parse("").is_err());
    }
}
