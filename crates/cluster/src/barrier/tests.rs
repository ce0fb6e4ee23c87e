//! A new leader whose watch is behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::Key;

use crate::testing::{Objects, ReceivedRequest, Thing, cluster, line, list, stream, thing};
use crate::work::Gate;
use crate::{Leadership, LeaseOptions, WatchOptions};

const SECOND: Duration = Duration::from_secs(1);

/// What the watch of the things delivers after the lease was acquired.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Watch {
    /// The change, at once.
    Delivers,
    /// Nothing: it hangs.
    Hangs,
    /// Nothing, because nothing has changed.
    Quiet,
}

/// A-L4: a predecessor has changed the thing. The new leader must not act on what it was before.
#[tokio::test(start_paused = true)]
async fn new_leader_acts_only_after_its_stores_have_caught_up() {
    for (watch, color, lists) in
        [(Watch::Delivers, "blue", 1), (Watch::Hangs, "blue", 2), (Watch::Quiet, "red", 2)]
    {
        let (changed, full_lists) = (Arc::<Mutex<bool>>::default(), Arc::<Mutex<u32>>::default());
        let watchers = Arc::<Mutex<Vec<_>>>::default();
        let (is_changed, counted, open, mut leases) =
            (Arc::clone(&changed), Arc::clone(&full_lists), Arc::clone(&watchers), Objects::default());
        let server = cluster(move |request: ReceivedRequest| {
            if request.path.contains("/leases") {
                return leases.respond(&request);
            }
            if request.is_watch() {
                let (sender, reply) = stream();
                open.lock().unwrap().push(sender);
                return reply;
            }
            // Other kinds have moved the version on in any case.
            let (version, now) = match *is_changed.lock().unwrap() {
                false => (5, thing("a", 3, "red")),
                true if watch == Watch::Quiet => (9, thing("a", 3, "red")),
                true => (9, thing("a", 8, "blue")),
            };
            if request.query.get("limit").map(String::as_str) != Some("1") {
                *counted.lock().unwrap() += 1;
            }
            list(version, "", vec![now])
        });
        let mut options = LeaseOptions::new("ns", "role", "one");
        let holder = Leadership::start(&server, options.clone());
        holder.wait_acquired().await;
        options.process = "two".into();
        let leadership = Leadership::start(&server, options);
        let fenced = server.fenced(Some(&leadership));
        let things = fenced.store::<Thing>(WatchOptions::default());
        let gate = Gate::new(Some(leadership.clone()), CancellationToken::new()).with_stores_of(&fenced);
        things.wait_synced().await;
        tokio::time::sleep(SECOND).await;

        // The predecessor changes the thing and releases the lease.
        *changed.lock().unwrap() = true;
        holder.release(SECOND).await;
        leadership.wait_acquired().await;
        assert!(!gate.is_open(), "{watch:?}: the stores are not fresh yet");
        if watch == Watch::Delivers {
            let events = [line("MODIFIED", thing("a", 8, "blue")), line("MODIFIED", thing("b", 9, "blue"))];
            for event in events {
                watchers.lock().unwrap()[0].send(event).unwrap();
            }
        }
        let started = Instant::now();
        timeout(5 * SECOND, gate.wait_open()).await.unwrap();
        assert!(gate.is_open() && started.elapsed() <= 2 * SECOND, "{watch:?}: {:?}", started.elapsed());
        assert_eq!(things.get(&Key::namespaced("ns", "a")).unwrap().color, color, "{watch:?}");
        assert_eq!(*full_lists.lock().unwrap(), lists, "{watch:?}");
    }
}
