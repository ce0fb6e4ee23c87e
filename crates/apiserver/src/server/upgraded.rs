//! Connections that were upgraded to another protocol and outlive their HTTP request.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Attached to each request over a socket. An upgraded connection keeps its connection slot, is notified when the
/// server shuts down, and the server waits for it.
#[derive(Clone)]
pub(crate) struct UpgradedConnection {
    pub(crate) stop: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) slot: Arc<Option<OwnedSemaphorePermit>>,
}

impl UpgradedConnection {
    /// Runs the upgraded connection.
    pub(crate) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { connections, slot, .. } = self;
        connections.spawn(async move {
            task.await;
            drop(slot);
        });
    }
}
