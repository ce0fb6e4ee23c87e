//! Kubernetes' own half of storage beside the sidecars: our controllers, on whichever API a test has.

use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, Events};
use wharf_controllers::{Context, binder, expand, protection};
use wharf_testkit::differential::Place;

/// Controllers in a thread of this process; they stop with the value.
pub(crate) struct Controllers {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Controllers {
    pub(crate) fn start(place: &Place) -> Self {
        let (stop, place) = (CancellationToken::new(), place.clone());
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let cluster = Cluster::with_client(place.client().await.unwrap());
                let context = |component: &str| Context {
                    cluster: cluster.clone(),
                    gate: Gate::new(None, told.clone()),
                    events: Events::start(&cluster, component, "test"),
                };
                // As upstream: what the sidecars say of a node that is gone is one of the scenarios.
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
            panic!("a controller has panicked, see above");
        }
    }
}
