//! What goes on after a request was answered: its connection became something else.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Comes with each request over a socket. What lasts holds the connection's place, is told when the server ends, and
/// is waited for then.
#[derive(Clone)]
pub(crate) struct Lasting {
    pub(crate) stop: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) place: Arc<Option<OwnedSemaphorePermit>>,
}

impl Lasting {
    /// Goes on with this.
    pub(crate) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { connections, place, .. } = self;
        connections.spawn(async move {
            task.await;
            drop(place);
        });
    }
}
