//! A connection with a write timeout: if the peer reads nothing for that long, the write fails and the connection ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Reads without a timeout; writes with one.
pub(super) struct WriteTimeout<I> {
    io: I,
    limit: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<I> WriteTimeout<I> {
    pub(super) fn new(io: I, limit: Duration) -> Self {
        Self { io, limit, stalled: None }
    }

    /// Returns the result of a write, or an error if it made no progress within the limit.
    fn enforce<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        stalled
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for WriteTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.enforce(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, pieces);
        self.enforce(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.enforce(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.enforce(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_write_succeeds_and_stalled_write_times_out() {
        let limit = Duration::from_secs(60);
        let (server, mut client) = tokio::io::duplex(4);
        let mut server = WriteTimeout::new(server, limit);
        let started = Instant::now();
        let reading = async {
            for _ in 0..4 {
                sleep(limit - Duration::from_secs(1)).await;
                client.read_u8().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let writing = async {
            server.write_all(b"12345678").await.unwrap();
            server.write_all(b"9").await.unwrap_err()
        };
        tokio::select! {
            () = reading => {}
            error = writing => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
        }
        // Four bytes at once, four one by one, then none.
        assert_eq!(started.elapsed(), 4 * (limit - Duration::from_secs(1)) + limit);
        assert_eq!(client.read_u8().await.unwrap(), b'5', "written bytes are delivered");
    }
}
