//! Runs blocking kernel calls from async code on a thread that may block.

use std::sync::Arc;

use wharf_linux::Kernel;

use super::error::NodeError;

/// The kernel of this node, for async callers.
#[derive(Clone)]
pub(crate) struct BlockingKernel(Arc<dyn Kernel>);

impl BlockingKernel {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self(kernel)
    }

    /// Runs kernel calls on a blocking thread. They run to their end even if the caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        steps: impl FnOnce(&dyn Kernel) -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, NodeError> {
        let kernel = self.0.clone();
        tokio::task::spawn_blocking(move || steps(&*kernel)).await.unwrap_or_else(|error| {
            Err(NodeError::Bug(format!("a kernel operation did not finish: {error}")))
        })
    }
}
