//! Tells of claims that wait for their driver to expand them; the contract is that of kube-controller-manager's
//! persistentvolume-expander. The work itself is the resizer's, and the node's.
//!
//! - A bound claim that asks for more than it has gets an event.
//! - One of a volume that a driver took over from an in-tree plugin is annotated for that driver's resizer besides.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::work::{Outcome, Wish, feed, serve};
use wharf_cluster::{ApiError, Backoff, Change, EventType, Priority, Queue, Store, WatchOptions};
use wharf_model::names::annotation::STORAGE_RESIZER;
use wharf_model::names::reason::EXTERNAL_EXPANDING;
use wharf_model::patch::annotate;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim};

use crate::Context;
use decide::{Step, decide, given, grew};

mod decide;

/// The name in events; upstream's.
pub const COMPONENT: &str = "volume_expand";

/// Claims seen to at once; upstream's.
const WORKERS: usize = 10;
/// The pause after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Runs until the stop.
pub async fn run(context: Context) {
    let teller = Arc::new(Teller::new(context));
    let one = |claim| {
        let teller = Arc::clone(&teller);
        async move { teller.see_to(&claim).await }
    };
    let feeds = |besides: &mut JoinSet<()>| teller.feeds(besides);
    serve(&teller.context.gate, teller.synced(), feeds, &teller.queue, WORKERS, one).await;
}

struct Teller {
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    queue: Queue<Key>,
}

impl Teller {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        let queue = Queue::new("expand", backoff, cluster.metrics());
        let (claims, volumes) =
            (cluster.store(WatchOptions::default()), cluster.store(WatchOptions::default()));
        Self { claims, volumes, queue, context }
    }

    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
    }

    fn feeds(&self, into: &mut JoinSet<()>) {
        let wishes = |change: &Change<PersistentVolumeClaim>| match grew(change) {
            true => vec![wish(change.key.clone())],
            false => Vec::new(),
        };
        into.spawn(feed(self.claims.clone(), self.queue.clone(), wishes));
        // A claim may be seen to be bound before its volume is.
        let wishes =
            |change: &Change<PersistentVolume>| given(change).map(wish).into_iter().collect::<Vec<_>>();
        into.spawn(feed(self.volumes.clone(), self.queue.clone(), wishes));
    }

    async fn see_to(&self, key: &Key) -> Outcome {
        let Some(claim) = self.claims.get(key) else { return Outcome::Done };
        if !self.context.gate.is_open() {
            return Outcome::After(Duration::ZERO);
        }
        let volume = self.volumes.get(&Key::cluster(&claim.spec.volume_name));
        let Step { tell, resizer } = decide(&claim, volume.as_deref());
        if let Some(note) = tell {
            self.context.events.tell(&*claim, EventType::Normal, EXTERNAL_EXPANDING, note);
        }
        let Some(resizer) = resizer else { return Outcome::Done };
        let patch = annotate(&claim.metadata, &[(STORAGE_RESIZER, Some(resizer))]);
        match self.context.cluster.patch(&PersistentVolumeClaim::API, key, None, patch).await {
            Ok(_) | Err(ApiError::NotFound(_)) => Outcome::Done,
            Err(error) => {
                tracing::warn!(claim = %key, resizer, %error, "cannot say who is to expand it");
                let note = format!("error setting resizer annotation to pvc {key}, with error {error}");
                self.context.events.tell(&*claim, EventType::Warning, EXTERNAL_EXPANDING, note);
                Outcome::Retry
            }
        }
    }
}

fn wish(key: Key) -> Wish<Key> {
    Wish { key, priority: Priority::Normal }
}
