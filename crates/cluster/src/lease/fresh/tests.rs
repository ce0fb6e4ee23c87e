//! A new leader whose watch is behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::Key;

use crate::testing::{Objects, ReceivedRequest, Thing, cluster, list, status, stream, thing};
use crate::work::Gate;
use crate::{Cluster, Leadership, LeaseOptions, WatchOptions};

const SECOND: Duration = Duration::from_secs(1);

/// A server with leases and one thing.
#[derive(Clone, Default)]
struct Server {
    /// The predecessor has changed the thing. The watch does not deliver that.
    changed: Arc<Mutex<bool>>,
    /// Lists fail.
    broken: Arc<Mutex<bool>>,
    lists: Arc<Mutex<u32>>,
}

impl Server {
    fn cluster(&self) -> Cluster {
        let (server, mut leases, mut watchers) = (self.clone(), Objects::default(), Vec::new());
        cluster(move |request: ReceivedRequest| {
            if request.path.contains("/leases") {
                return leases.respond(&request);
            }
            if request.is_watch() {
                let (sender, reply) = stream();
                watchers.push(sender);
                return reply;
            }
            *server.lists.lock().unwrap() += 1;
            match (*server.broken.lock().unwrap(), *server.changed.lock().unwrap()) {
                (true, _) => status(500, "InternalError", ""),
                (false, false) => list(5, "", vec![thing("a", 3, "red")]),
                (false, true) => list(9, "", vec![thing("a", 8, "blue")]),
            }
        })
    }
}

/// A-L4: the new leader must not act on what the thing was before. A kind that cannot be listed does not stop it for good.
#[tokio::test(start_paused = true)]
async fn new_leader_lists_its_stores_before_it_acts() {
    for (broken, color, within) in [(false, "blue", SECOND), (true, "red", 11 * SECOND)] {
        let server = Server::default();
        let cluster = server.cluster();
        let mut options = LeaseOptions::new("ns", "role", "one");
        let holder = Leadership::start(&cluster, options.clone());
        holder.wait_acquired().await;
        options.process = "two".into();
        let leadership = Leadership::start(&cluster, options);
        let things = cluster.fenced(Some(&leadership)).store::<Thing>(WatchOptions::default());
        let gate = Gate::new(Some(leadership.clone()), CancellationToken::new());
        things.wait_synced().await;
        tokio::time::sleep(SECOND).await;

        *server.changed.lock().unwrap() = true;
        *server.broken.lock().unwrap() = broken;
        holder.release(SECOND).await;
        leadership.wait_acquired().await;
        assert!(!gate.is_open(), "the store is not fresh yet");
        let started = Instant::now();
        timeout(30 * SECOND, gate.wait_open()).await.unwrap();
        assert!(gate.is_open() && started.elapsed() <= within, "{broken}: {:?}", started.elapsed());
        assert_eq!(things.get(&Key::namespaced("ns", "a")).unwrap().color, color, "{broken}");
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_starts_as_leader_lists_its_stores_once() {
    let server = Server::default();
    let cluster = server.cluster();
    let leadership = Leadership::start(&cluster, LeaseOptions::new("ns", "role", "one"));
    let _things = cluster.fenced(Some(&leadership)).store::<Thing>(WatchOptions::default());
    let gate = Gate::new(Some(leadership), CancellationToken::new());
    timeout(SECOND, gate.wait_open()).await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(*server.lists.lock().unwrap(), 1);
}
