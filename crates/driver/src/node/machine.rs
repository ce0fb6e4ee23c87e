//! The kernel, seen from async code: its calls block, so they run on a thread that may.

use std::sync::Arc;

use wharf_linux::Kernel;

use super::error::NodeError;

/// The machine this node half works on.
#[derive(Clone)]
pub(crate) struct Machine(Arc<dyn Kernel>);

impl Machine {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self(kernel)
    }

    /// Does some steps with the kernel. They run to their end even if nobody waits for them any more.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        steps: impl FnOnce(&dyn Kernel) -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, NodeError> {
        let kernel = self.0.clone();
        tokio::task::spawn_blocking(move || steps(&*kernel)).await.unwrap_or_else(|error| {
            Err(NodeError::Bug(format!("a step with the kernel did not end: {error}")))
        })
    }
}
