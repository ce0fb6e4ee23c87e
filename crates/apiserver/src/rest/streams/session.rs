//! A command over a WebSocket, as `kubectl exec` speaks it: the first byte of each message says which stream it
//! belongs to, and the last message is a `Status` with the exit code.
//!
//! Whoever goes first ends it: the command (its outputs are read to their end, then its status is sent), the client
//! (the command is killed), or the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::websocket::{Decoder, Incoming, Outgoing, Protocol, Why};
use super::{Command, Session, Size};
use crate::status::Refusal;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Its message is the number of the channel that ends.
const CLOSE: u8 = 255;

/// Frames that wait for the client.
const WAITING: usize = 16;
/// How much of an output is sent at a time.
const PIECE: usize = 32 << 10;
/// Between two signs of life.
const PING: Duration = Duration::from_secs(30);
/// A client from which nothing came for so many of them is gone.
const SILENT: u32 = 3;
/// For output that is still in the pipe when the command has ended; what it left running may hold the pipe for ever.
const DRAIN: Duration = Duration::from_secs(2);
/// For the last words to be sent, and for the client to close.
const FAREWELL: Duration = Duration::from_secs(5);

/// How the streams of a command are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channels {
    protocol: Protocol,
    /// On which the client is told, by an empty message, that it is connected.
    first: u8,
}

impl Channels {
    pub(super) fn of(command: &Command, protocol: Protocol) -> Self {
        let first = match command {
            Command { stdout: true, .. } => STDOUT,
            Command { stderr: true, .. } => STDERR,
            Command { .. } => ERROR,
        };
        Self { protocol, first }
    }
}

/// How it came to an end.
enum End {
    /// The command did.
    Command(Value),
    /// The client closed, or is gone.
    Client,
    /// The client said what it may not say.
    Wrong(Why),
    /// The server ends.
    Server,
}

/// Serves one command until it ends.
pub(super) async fn serve<I>(io: I, session: Session, channels: Channels, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut from, to) = tokio::io::split(io);
    let (out, waiting) = mpsc::channel(WAITING);
    let writing = write(to, waiting);
    tokio::pin!(writing);
    let mut decoder = Decoder::default();
    let talk = async {
        let Session { stdin, stdout, stderr, resize, ended } = session;
        let heard = Heard::default();
        _ = out.send(Outgoing::Data(channels.first, Bytes::new())).await;
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Server,
            end = read(&mut from, &mut decoder, channels, stdin, resize, &out, &heard) => end,
            () = beat(&out, &heard) => End::Client,
            status = run(stdout, stderr, ended, &out) => End::Command(status),
        };
        let why = match end {
            End::Command(status) => {
                _ = out.send(Outgoing::Data(ERROR, status.to_string().into())).await;
                Why::Done
            }
            End::Client => Why::Done,
            End::Wrong(why) => why,
            End::Server => Why::GoingAway,
        };
        _ = out.send(Outgoing::Close(why)).await;
    };
    tokio::select! {
        () = &mut writing => return,
        () = talk => drop(out),
    }
    let goodbye = async {
        writing.await;
        // The client answers our close with its own; before that, it may not have read all.
        while !matches!(next(&mut from, &mut decoder).await, Ok(Incoming::Close) | Err(_)) {}
    };
    _ = timeout(FAREWELL, goodbye).await;
}

/// Sends what waits, until nobody will add to it or the client is gone.
async fn write(mut to: impl AsyncWrite + Unpin, mut waiting: mpsc::Receiver<Outgoing>) {
    while let Some(frame) = waiting.recv().await {
        if to.write_all(&frame.frame()).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// Whether the client is there.
#[derive(Default)]
struct Heard {
    anything: AtomicBool,
    /// We do not listen: the command does not read as fast as the client writes.
    busy: AtomicBool,
}

/// Signs of life, until none comes back.
async fn beat(out: &mpsc::Sender<Outgoing>, heard: &Heard) {
    let mut beats = interval(PING);
    beats.tick().await;
    let mut silent = 0;
    while silent < SILENT {
        beats.tick().await;
        let there = heard.anything.swap(false, Ordering::Relaxed) || heard.busy.load(Ordering::Relaxed);
        silent = if there { 0 } else { silent + 1 };
        _ = out.send(Outgoing::Ping).await;
    }
}

/// The next frame. Nothing is lost if this is dropped while it waits.
async fn next(from: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Result<Incoming, Why> {
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

/// What the client sends goes where it belongs, until the client goes.
async fn read(
    from: &mut (impl AsyncRead + Unpin),
    decoder: &mut Decoder,
    channels: Channels,
    mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: Option<Box<dyn Fn(Size) + Send + Sync>>,
    out: &mpsc::Sender<Outgoing>,
    heard: &Heard,
) -> End {
    // Of the message that is being read.
    let mut channel = None;
    loop {
        let frame = match next(from, decoder).await {
            Ok(frame) => frame,
            Err(why) => return End::Wrong(why),
        };
        heard.anything.store(true, Ordering::Relaxed);
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
                heard.busy.store(true, Ordering::Relaxed);
                let failed = match &mut stdin {
                    Some(stdin) => stdin.write_all(&payload).await.is_err() || stdin.flush().await.is_err(),
                    None => false,
                };
                heard.busy.store(false, Ordering::Relaxed);
                // Who does not read any more, as `head` does, still has its say.
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

/// As kubectl says it: `{"Width":80,"Height":24}`.
fn size(payload: &[u8]) -> Option<Size> {
    let value: Value = serde_json::from_slice(payload).ok()?;
    let side = |name: &str| value.get(name).and_then(Value::as_u64).and_then(|side| u16::try_from(side).ok());
    Some(Size { width: side("Width")?, height: side("Height")? })
}

/// Sends what the command writes, until it has ended; then its status.
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
            _ = timeout(DRAIN, outputs).await;
            code
        }
        () = &mut outputs => ended.await,
    };
    status(code)
}

async fn pump(from: Option<Box<dyn AsyncRead + Send + Unpin>>, channel: u8, out: &mpsc::Sender<Outgoing>) {
    let Some(mut from) = from else { return };
    let mut buffer = BytesMut::with_capacity(PIECE);
    loop {
        buffer.reserve(PIECE);
        match from.read_buf(&mut buffer).await {
            // A terminal whose other end is closed answers with an error.
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let piece = Outgoing::Data(channel, buffer.split().freeze());
                if out.send(piece).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// How a command ended, in upstream's words.
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
        Err(why) => {
            let message = format!("Internal error occurred: error executing command in container: {why}");
            Refusal::new(500, "InternalError", message).to_json()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::super::websocket::tests::masked;
    use super::*;

    /// A client's end, and the command's.
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
            ended: Box::pin(async { ended.await.unwrap_or_else(|_| Err("lost".into())) }),
        };
        let stop = CancellationToken::new();
        let channels = Channels { protocol, first: STDOUT };
        let serving = tokio::spawn(serve(io, session, channels, stop.clone()));
        let (stdout, stderr, exit) = (Some(stdout), Some(stderr), Some(exit));
        Pair { client, stdin, stdout, stderr, exit, sizes, stop, serving }
    }

    impl Pair {
        async fn send(&mut self, frame: Vec<u8>) {
            self.client.write_all(&frame).await.unwrap();
        }

        /// The next frame of the server: its opcode and payload. All are short here.
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

        async fn begun(mut self) -> Self {
            assert_eq!(self.frame().await, (2, vec![STDOUT]), "the client learns that it is connected");
            self
        }
    }

    #[tokio::test]
    async fn streams_go_where_they_belong_and_the_status_comes_last() {
        let mut pair = pair(Protocol::V5).begun().await;
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
        assert_eq!(pair.stdin.read(&mut read).await.unwrap(), 0, "its input ends");

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
    async fn v4_has_no_end_of_input() {
        let mut pair = pair(Protocol::V4).begun().await;
        pair.send(masked(0x82, &[CLOSE, STDIN])).await;
        pair.send(masked(0x82, b"\x00x")).await;
        let mut read = [0; 1];
        pair.stdin.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"x");
    }

    /// Whatever the command left running holds its output open: the status comes all the same.
    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_stays_open_holds_up_nobody() {
        let mut pair = pair(Protocol::V5).begun().await;
        pair.exit.take().unwrap().send(Ok(0)).unwrap();
        let (_, payload) = pair.frame().await;
        let status: Value = serde_json::from_slice(&payload[1..]).unwrap();
        assert_eq!((payload[0], &status["status"]), (ERROR, &"Success".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_gone_is_not_waited_for() {
        // Closed, broken off, silent for long, and wrong: the command is dropped each time.
        for (says, code) in [(Some(masked(0x88, &[])), 1000), (None, 1000), (Some(vec![0x82, 0x01, 7]), 1002)]
        {
            let mut pair = pair(Protocol::V5).begun().await;
            if let Some(says) = says {
                pair.send(says).await;
            }
            let close = loop {
                let (opcode, payload) = pair.frame().await;
                if opcode == 8 {
                    break payload;
                }
                assert_eq!(opcode, 9, "only signs of life");
            };
            assert_eq!(u16::from_be_bytes([close[0], close[1]]), code);
            assert!(pair.exit.take().unwrap().is_closed(), "nobody waits for the command");
            pair.serving.await.unwrap();
        }
        let pair = pair(Protocol::V5);
        drop(pair.client);
        pair.serving.await.unwrap();
    }

    #[tokio::test]
    async fn the_servers_end_is_theirs() {
        let mut pair = pair(Protocol::V5).begun().await;
        pair.stop.cancel();
        assert_eq!(pair.frame().await, (8, vec![3, 233]));
        drop(pair.client);
        pair.serving.await.unwrap();
    }
}
