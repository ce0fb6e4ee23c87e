//! A minimal HTTP client with one connection per request. [`BrokenResponse`] distinguishes the ways in which a response
//! can be corrupted.

use std::collections::BTreeMap;
use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) struct Client {
    address: String,
    token: String,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
    text: String,
    pub(crate) body: Value,
}

#[derive(Debug)]
pub(crate) enum BrokenResponse {
    Io(io::Error),
    /// Fewer bytes than `content-length`, or none.
    Short,
    Json(#[allow(dead_code, reason = "printed when a test fails")] serde_json::Error),
}

impl BrokenResponse {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => "reset",
            Self::Io(_) => "io",
            Self::Short => "eof",
            Self::Json(_) => "json",
        }
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        Self { address: url.strip_prefix("http://").unwrap().to_owned(), token: "any".to_owned() }
    }

    pub(crate) fn with_token(self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self }
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send("GET", path, None).await
    }

    pub(crate) async fn get_text(&self, path: &str) -> (u16, String) {
        let response = self.send("GET", path, None).await;
        (response.status, response.text)
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.send("POST", path, Some(body)).await
    }

    pub(crate) async fn try_post(&self, path: &str, body: Value) -> Result<Response, BrokenResponse> {
        self.try_send("POST", path, Some(body)).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Response {
        self.try_send(method, path, body).await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Response, BrokenResponse> {
        let mut stream = TcpStream::connect(&self.address).await.map_err(BrokenResponse::Io)?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let (address, token, length) = (&self.address, &self.token, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.map_err(BrokenResponse::Io)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.map_err(BrokenResponse::Io)?;
        let text = String::from_utf8(bytes).unwrap();
        let (head, text) = text.split_once("\r\n\r\n").ok_or(BrokenResponse::Short)?;
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let content_length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        if text.len() < content_length {
            return Err(BrokenResponse::Short);
        }
        let json = headers.get("content-type").is_some_and(|kind| kind.starts_with("application/json"));
        let body = if json { serde_json::from_str(text).map_err(BrokenResponse::Json)? } else { Value::Null };
        Ok(Response { status, headers, text: text.to_owned(), body })
    }
}
