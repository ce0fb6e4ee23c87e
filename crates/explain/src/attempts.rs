//! What a sidecar tried, as its page `/debug/attempts` tells.

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Duration, timeout};
use wharf_model::Time;

const PATIENCE: Duration = Duration::from_secs(3);
/// The page is bounded; whatever sends more is something else.
const LIMIT: u64 = 8 << 20;

/// One attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// The role that tried.
    pub role: String,
    /// For which object.
    pub object: String,
    /// When.
    pub time: Option<Time>,
    /// What.
    pub step: String,
    /// What went wrong; `None` if nothing did.
    pub error: Option<String>,
    /// How often in a row it went wrong.
    pub failures: u64,
}

/// Reads the page at `address`, such as `127.0.0.1:9808` or `unix:///run/metrics.sock`.
pub(crate) async fn read(address: &str) -> Result<Vec<Attempt>, String> {
    let asked = async {
        match address.strip_prefix("unix://") {
            Some(path) => ask(UnixStream::connect(path).await?, "localhost").await,
            None => {
                let address = address.trim_start_matches("http://").trim_end_matches('/');
                ask(TcpStream::connect(address).await?, address).await
            }
        }
    };
    let answer = match timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string())?,
        Err(_) => return Err("no answer".to_owned()),
    };
    parse(&answer)
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str) -> std::io::Result<String> {
    let request = format!("GET /debug/attempts HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(LIMIT).read_to_string(&mut answer).await?;
    Ok(answer)
}

fn parse(answer: &str) -> Result<Vec<Attempt>, String> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(head.lines().next().unwrap_or_default().to_owned());
    }
    // Chunks, if it is sent in any, are lines of their own around one JSON array.
    let (from, to) = (body.find('[').ok_or("no list")?, body.rfind(']').ok_or("no list")?);
    serde_json::from_str(&body[from..=to]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let page = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n[{\"role\": \"attacher\", \"object\": \"a\", \
                    \"time\": \"2026-11-15T10:00:00Z\", \"step\": \"ControllerPublishVolume\", \"error\": \"no\", \
                    \"failures\": 2}]\n";
        let read = parse(page).unwrap();
        assert_eq!((read[0].role.as_str(), read[0].failures), ("attacher", 2));
        assert!(parse("HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(parse("").is_err());
    }
}
