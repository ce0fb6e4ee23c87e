//! Connections that were upgraded to another protocol and outlive their HTTP request.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Extension of each request that arrives over a socket, for handlers that upgrade the connection. An upgraded
/// connection keeps its connection slot, and the server notifies it on shutdown and waits for it.
#[derive(Clone)]
pub(crate) struct UpgradedConnection {
    pub(crate) stop: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) slot: Arc<Option<OwnedSemaphorePermit>>,
}

impl UpgradedConnection {
    /// Spawns the task that serves the upgraded connection. The connection slot is released when the task ends.
    pub(crate) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { connections, slot, .. } = self;
        connections.spawn(async move {
            task.await;
            drop(slot);
        });
    }
}
