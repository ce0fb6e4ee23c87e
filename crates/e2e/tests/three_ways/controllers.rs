//! Kubernetes' storage controllers for the sidecars under test: our implementation, on any API.

use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};
use wharf_controllers::{Context, binder, expand, protection};
use wharf_testkit::differential::ApiTarget;

/// Controllers in a thread of this process; dropping the value stops them.
pub(crate) struct Controllers {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Controllers {
    pub(crate) fn start(target: &ApiTarget) -> Self {
        let (stop, target) = (CancellationToken::new(), target.clone());
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let cluster = Cluster::with_client(target.client().await.unwrap());
                let context = |component: &str| Context {
                    cluster: cluster.clone(),
                    gate: Gate::new(None, stopping.clone()),
                    events: EventRecorder::start(&cluster, component, "test"),
                };
                // As upstream does: one scenario covers what the sidecars report about a deleted node.
                let binding = binder::Settings { clear_selected_node: false, ..Default::default() };
                tokio::join!(
                    binder::run(context(binder::COMPONENT), binding),
                    protection::run(context("protection")),
                    expand::run(context(expand::COMPONENT)),
                );
            });
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a controller panicked, see above");
        }
    }
}
