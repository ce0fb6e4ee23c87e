//! An exec session over a WebSocket, as `kubectl exec` uses it: the first byte of each message is the channel, and the
//! last message is a `Status` with the exit code.
//!
//! The session ends with the command (its output is read to the end, then its status is sent), with the client (the
//! command is killed), or with the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::websocket::{CloseCode, Decoder, Incoming, Outgoing, Protocol};
use super::{Command, Session, Size};
use crate::status::StatusError;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// The payload is the number of the channel to close.
const CLOSE: u8 = 255;

/// The number of frames queued for the client.
const OUTGOING_QUEUE: usize = 16;
/// How much output is sent at a time.
const CHUNK: usize = 32 << 10;
/// The interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// A client that sends nothing for this many ping intervals is gone.
const MAX_MISSED_PINGS: u32 = 3;
/// How long to read remaining output after the command has exited. Its child processes may hold the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for the last frames to be sent and for the client to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The channel protocol of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channels {
    protocol: Protocol,
    /// The channel of the empty message that tells the client that it is connected.
    hello_channel: u8,
}

impl Channels {
    pub(super) fn for_command(command: &Command, protocol: Protocol) -> Self {
        let hello_channel = match command {
            Command { stdout: true, .. } => STDOUT,
            Command { stderr: true, .. } => STDERR,
            Command { .. } => ERROR,
        };
        Self { protocol, hello_channel }
    }
}

/// How a session ended.
enum End {
    /// The command exited.
    Command(Value),
    /// The client closed the connection or is gone.
    Client,
    /// The client violated the protocol.
    Violation(CloseCode),
    /// The server shuts down.
    Server,
}

/// Serves one session until it ends.
pub(super) async fn serve<I>(io: I, session: Session, channels: Channels, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut from, to) = tokio::io::split(io);
    let (out, outgoing) = mpsc::channel(OUTGOING_QUEUE);
    let writing = write(to, outgoing);
    tokio::pin!(writing);
    let mut decoder = Decoder::default();
    let exchange = async {
        let Session { stdin, stdout, stderr, resize, exit_code: ended } = session;
        let activity = ClientActivity::default();
        _ = out.send(Outgoing::Data(channels.hello_channel, Bytes::new())).await;
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Server,
            end = read(&mut from, &mut decoder, channels, stdin, resize, &out, &activity) => end,
            () = ping_until_silent(&out, &activity) => End::Client,
            status = run(stdout, stderr, ended, &out) => End::Command(status),
        };
        let code = match end {
            End::Command(status) => {
                _ = out.send(Outgoing::Data(ERROR, status.to_string().into())).await;
                CloseCode::Normal
            }
            End::Client => CloseCode::Normal,
            End::Violation(code) => code,
            End::Server => CloseCode::GoingAway,
        };
        _ = out.send(Outgoing::Close(code)).await;
    };
    tokio::select! {
        () = &mut writing => return,
        () = exchange => drop(out),
    }
    let close_handshake = async {
        writing.await;
        // The client replies to our close frame; before that, it may not have read everything.
        while !matches!(next(&mut from, &mut decoder).await, Ok(Incoming::Close) | Err(_)) {}
    };
    _ = timeout(CLOSE_TIMEOUT, close_handshake).await;
}

/// Sends queued frames until the queue is closed or the client is gone.
async fn write(mut to: impl AsyncWrite + Unpin, mut outgoing: mpsc::Receiver<Outgoing>) {
    while let Some(frame) = outgoing.recv().await {
        if to.write_all(&frame.frame()).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// Shows whether the client is alive.
#[derive(Default)]
struct ClientActivity {
    received: AtomicBool,
    /// We are not reading from the client, because the command does not read its input fast enough.
    stdin_blocked: AtomicBool,
}

/// Sends pings until the client stops responding.
async fn ping_until_silent(out: &mpsc::Sender<Outgoing>, activity: &ClientActivity) {
    let mut pings = interval(PING_INTERVAL);
    pings.tick().await;
    let mut missed = 0;
    while missed < MAX_MISSED_PINGS {
        pings.tick().await;
        let alive = activity.received.swap(false, Ordering::Relaxed)
            || activity.stdin_blocked.load(Ordering::Relaxed);
        missed = if alive { 0 } else { missed + 1 };
        _ = out.send(Outgoing::Ping).await;
    }
}

/// The next frame. Cancel safe.
async fn next(from: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Result<Incoming, CloseCode> {
    loop {
        if let Some(frame) = decoder.next()? {
            return Ok(frame);
        }
        match from.read_buf(&mut decoder.buffer).await {
            Ok(0) | Err(_) => return Ok(Incoming::Close),
            Ok(_) => {}
        }
    }
}

/// Forwards the client's frames until the client closes the connection.
async fn read(
    from: &mut (impl AsyncRead + Unpin),
    decoder: &mut Decoder,
    channels: Channels,
    mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: Option<Box<dyn Fn(Size) + Send + Sync>>,
    out: &mpsc::Sender<Outgoing>,
    activity: &ClientActivity,
) -> End {
    // The channel of the current message.
    let mut channel = None;
    loop {
        let frame = match next(from, decoder).await {
            Ok(frame) => frame,
            Err(code) => return End::Violation(code),
        };
        activity.received.store(true, Ordering::Relaxed);
        let payload = match frame {
            Incoming::Close => return End::Client,
            Incoming::Pong => continue,
            Incoming::Ping(payload) => {
                _ = out.send(Outgoing::Pong(payload)).await;
                continue;
            }
            Incoming::Data { first: false, payload } => payload,
            Incoming::Data { first: true, mut payload } => {
                if payload.is_empty() {
                    continue;
                }
                channel = Some(payload.split_to(1)[0]);
                payload
            }
        };
        match channel {
            Some(STDIN) => {
                activity.stdin_blocked.store(true, Ordering::Relaxed);
                let failed = match &mut stdin {
                    Some(stdin) => stdin.write_all(&payload).await.is_err() || stdin.flush().await.is_err(),
                    None => false,
                };
                activity.stdin_blocked.store(false, Ordering::Relaxed);
                // A command that stops reading, such as `head`, may still write output.
                if failed {
                    stdin = None;
                }
            }
            Some(RESIZE) => {
                if let (Some(resize), Some(size)) = (&resize, size(&payload)) {
                    resize(size);
                }
            }
            Some(CLOSE) if channels.protocol == Protocol::V5 => {
                if payload.first() == Some(&STDIN)
                    && let Some(mut stdin) = stdin.take()
                {
                    _ = stdin.shutdown().await;
                }
            }
            _ => {}
        }
    }
}

/// Parses kubectl's `{"Width":80,"Height":24}`.
fn size(payload: &[u8]) -> Option<Size> {
    let value: Value = serde_json::from_slice(payload).ok()?;
    let side = |name: &str| value.get(name).and_then(Value::as_u64).and_then(|side| u16::try_from(side).ok());
    Some(Size { width: side("Width")?, height: side("Height")? })
}

/// Forwards the output of the command until it exits. Returns its status.
async fn run(
    stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    mut ended: std::pin::Pin<Box<dyn Future<Output = Result<i32, String>> + Send>>,
    out: &mpsc::Sender<Outgoing>,
) -> Value {
    let outputs = async {
        tokio::join!(pump(stdout, STDOUT, out), pump(stderr, STDERR, out));
    };
    tokio::pin!(outputs);
    let code = tokio::select! {
        code = &mut ended => {
            _ = timeout(DRAIN_TIMEOUT, outputs).await;
            code
        }
        () = &mut outputs => ended.await,
    };
    status(code)
}

async fn pump(from: Option<Box<dyn AsyncRead + Send + Unpin>>, channel: u8, out: &mpsc::Sender<Outgoing>) {
    let Some(mut from) = from else { return };
    let mut buffer = BytesMut::with_capacity(CHUNK);
    loop {
        buffer.reserve(CHUNK);
        match from.read_buf(&mut buffer).await {
            // Reading a terminal whose other end is closed fails.
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let chunk = Outgoing::Data(channel, buffer.split().freeze());
                if out.send(chunk).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The status of a finished command, in upstream's format.
fn status(ended: Result<i32, String>) -> Value {
    match ended {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(reason) => {
            let message = format!("Internal error occurred: error executing command in container: {reason}");
            StatusError::new(500, "InternalError", message).to_json()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::super::websocket::tests::masked;
    use super::*;

    /// The client's end and the command's end of a session.
    struct Pair {
        client: DuplexStream,
        stdin: DuplexStream,
        stdout: Option<DuplexStream>,
        stderr: Option<DuplexStream>,
        exit: Option<tokio::sync::oneshot::Sender<Result<i32, String>>>,
        sizes: mpsc::UnboundedReceiver<Size>,
        stop: CancellationToken,
        serving: tokio::task::JoinHandle<()>,
    }

    fn pair(protocol: Protocol) -> Pair {
        let (client, io) = duplex(1 << 16);
        let (stdin, in_) = duplex(64);
        let (stdout, out) = duplex(1 << 10);
        let (stderr, err) = duplex(1 << 10);
        let (exit, ended) = tokio::sync::oneshot::channel();
        let (resized, sizes) = mpsc::unbounded_channel();
        let session = Session {
            stdin: Some(Box::new(in_)),
            stdout: Some(Box::new(out)),
            stderr: Some(Box::new(err)),
            resize: Some(Box::new(move |size| _ = resized.send(size))),
            exit_code: Box::pin(async { ended.await.unwrap_or_else(|_| Err("lost".into())) }),
        };
        let stop = CancellationToken::new();
        let channels = Channels { protocol, hello_channel: STDOUT };
        let serving = tokio::spawn(serve(io, session, channels, stop.clone()));
        let (stdout, stderr, exit) = (Some(stdout), Some(stderr), Some(exit));
        Pair { client, stdin, stdout, stderr, exit, sizes, stop, serving }
    }

    impl Pair {
        async fn send(&mut self, frame: Vec<u8>) {
            self.client.write_all(&frame).await.unwrap();
        }

        /// The next frame from the server: its opcode and payload. All are short here.
        async fn frame(&mut self) -> (u8, Vec<u8>) {
            let mut head = [0; 2];
            self.client.read_exact(&mut head).await.unwrap();
            let mut length = usize::from(head[1]);
            if length == 126 {
                let mut more = [0; 2];
                self.client.read_exact(&mut more).await.unwrap();
                length = usize::from(u16::from_be_bytes(more));
            }
            let mut payload = vec![0; length];
            self.client.read_exact(&mut payload).await.unwrap();
            (head[0] & 0x0f, payload)
        }

        async fn connected(mut self) -> Self {
            assert_eq!(self.frame().await, (2, vec![STDOUT]), "the first message is empty");
            self
        }
    }

    #[tokio::test]
    async fn streams_are_forwarded_and_status_is_sent_last() {
        let mut pair = pair(Protocol::V5).connected().await;
        pair.send(masked(0x82, b"\x00hel")).await;
        pair.send(masked(0x02, b"\x00l")).await;
        pair.send(masked(0x80, b"o")).await;
        pair.send(masked(0x82, b"\x04{\"Width\":80,\"Height\":24}")).await;
        pair.send(masked(0x89, b"p")).await;
        let mut read = [0; 5];
        pair.stdin.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"hello");
        assert_eq!(pair.sizes.recv().await, Some(Size { width: 80, height: 24 }));
        assert_eq!(pair.frame().await, (10, b"p".to_vec()));
        pair.send(masked(0x82, &[CLOSE, STDIN])).await;
        assert_eq!(pair.stdin.read(&mut read).await.unwrap(), 0, "stdin is closed");

        pair.stdout.as_mut().unwrap().write_all(b"out").await.unwrap();
        assert_eq!(pair.frame().await, (2, b"\x01out".to_vec()));
        pair.stderr.as_mut().unwrap().write_all(b"err").await.unwrap();
        assert_eq!(pair.frame().await, (2, b"\x02err".to_vec()));
        pair.stdout.as_mut().unwrap().write_all(b"last").await.unwrap();
        (pair.stdout, pair.stderr) = (None, None);
        pair.exit.take().unwrap().send(Ok(3)).unwrap();
        assert_eq!(pair.frame().await, (2, b"\x01last".to_vec()));
        let (opcode, payload) = pair.frame().await;
        assert_eq!((opcode, payload[0]), (2, ERROR));
        let status: Value = serde_json::from_slice(&payload[1..]).unwrap();
        assert_eq!((&status["status"], &status["reason"]), (&"Failure".into(), &"NonZeroExitCode".into()));
        assert_eq!(status["details"]["causes"], json!([{"reason": "ExitCode", "message": "3"}]));
        assert_eq!(pair.frame().await, (8, vec![3, 232]));
        pair.send(masked(0x88, &[3, 232])).await;
        pair.serving.await.unwrap();
    }

    #[tokio::test]
    async fn v4_cannot_close_stdin() {
        let mut pair = pair(Protocol::V4).connected().await;
        pair.send(masked(0x82, &[CLOSE, STDIN])).await;
        pair.send(masked(0x82, b"\x00x")).await;
        let mut read = [0; 1];
        pair.stdin.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"x");
    }

    /// A child process of the command holds its output open: the status is sent anyway.
    #[tokio::test(start_paused = true)]
    async fn open_pipe_does_not_delay_the_status() {
        let mut pair = pair(Protocol::V5).connected().await;
        pair.exit.take().unwrap().send(Ok(0)).unwrap();
        let (_, payload) = pair.frame().await;
        let status: Value = serde_json::from_slice(&payload[1..]).unwrap();
        assert_eq!((payload[0], &status["status"]), (ERROR, &"Success".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_client_ends_the_session() {
        // Closed, silent, and in violation of the protocol: the command is dropped each time.
        for (sent, code) in [(Some(masked(0x88, &[])), 1000), (None, 1000), (Some(vec![0x82, 0x01, 7]), 1002)]
        {
            let mut pair = pair(Protocol::V5).connected().await;
            if let Some(sent) = sent {
                pair.send(sent).await;
            }
            let close = loop {
                let (opcode, payload) = pair.frame().await;
                if opcode == 8 {
                    break payload;
                }
                assert_eq!(opcode, 9, "only pings are expected");
            };
            assert_eq!(u16::from_be_bytes([close[0], close[1]]), code);
            assert!(pair.exit.take().unwrap().is_closed(), "the command must be dropped");
            pair.serving.await.unwrap();
        }
        let pair = pair(Protocol::V5);
        drop(pair.client);
        pair.serving.await.unwrap();
    }

    #[tokio::test]
    async fn server_shutdown_ends_the_session() {
        let mut pair = pair(Protocol::V5).connected().await;
        pair.stop.cancel();
        assert_eq!(pair.frame().await, (8, vec![3, 233]));
        drop(pair.client);
        pair.serving.await.unwrap();
    }
}
