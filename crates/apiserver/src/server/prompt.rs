//! A connection whose peer has to take what is sent to it: a write that gets nowhere for so long is an error, and that
//! ends the connection, whatever is being sent on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Reads as long as it takes; writes in time.
pub(super) struct Prompt<I> {
    io: I,
    how_long: Duration,
    /// While a write gets nowhere.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<I> Prompt<I> {
    pub(super) fn new(io: I, how_long: Duration) -> Self {
        Self { io, how_long, stuck: None }
    }

    /// What becomes of a write that came to this.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let how_long = self.how_long;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(how_long)));
        stuck.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take what is sent to it"))
        })
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Prompt<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Prompt<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, pieces);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.in_time(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_may_be_slow_and_not_stuck() {
        let long = Duration::from_secs(60);
        let (near, mut far) = tokio::io::duplex(4);
        let mut near = Prompt::new(near, long);
        let began = Instant::now();
        let reading = async {
            for _ in 0..4 {
                sleep(long - Duration::from_secs(1)).await;
                far.read_u8().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let writing = async {
            near.write_all(b"12345678").await.unwrap();
            near.write_all(b"9").await.unwrap_err()
        };
        tokio::select! {
            () = reading => {}
            error = writing => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
        }
        // Four bytes at once, four by and by, and then none.
        assert_eq!(began.elapsed(), 4 * (long - Duration::from_secs(1)) + long);
        assert_eq!(far.read_u8().await.unwrap(), b'5', "what was written is there");
    }
}
