//! What happens to the work of a holder that can no longer renew its lease.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::Kind;

use crate::testing::{Objects, ReceivedRequest, Reply, Thing, cluster, decoded, thing};
use crate::work::{Gate, WorkOutcome, WriteOutcome, run_workers, write};
use crate::{ApiError, Backoff, Cluster, Leadership, LeaseOptions, Metrics, Priority, Queue};

const SECOND: Duration = Duration::from_secs(1);

/// A server with leases and one thing. `requests` has the requests for the thing.
struct Server {
    cluster: Cluster,
    requests: Arc<Mutex<Vec<String>>>,
    no_leases: Arc<Mutex<bool>>,
}

fn server() -> Server {
    let (requests, no_leases) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<bool>>::default());
    let (seen, down, mut objects) = (Arc::clone(&requests), Arc::clone(&no_leases), Objects::default());
    let cluster = cluster(move |request: ReceivedRequest| match request.path.contains("/leases") {
        true if *down.lock().unwrap() => Reply::Never,
        true => objects.respond(&request),
        false => {
            seen.lock().unwrap().push(request.method.clone());
            Reply::Json(200, thing("a", 3, "red"))
        }
    });
    Server { cluster, requests, no_leases }
}

impl Server {
    async fn lead(&self) -> Leadership {
        let leadership = Leadership::start(&self.cluster, LeaseOptions::new("ns", "role", "one"));
        leadership.wait_acquired().await;
        leadership
    }

    /// The server no longer answers renewals.
    fn partition(&self) {
        *self.no_leases.lock().unwrap() = true;
    }
}

/// A-M3: a step that reads and then deletes. The lease is lost in between.
#[tokio::test(start_paused = true)]
async fn write_is_not_sent_after_the_renew_deadline() {
    let server = server();
    let leadership = server.lead().await;
    let fenced = server.cluster.fenced(Some(&leadership));
    let seen = decoded(thing("a", 3, "red")).metadata;
    assert_eq!(write::delete::<Thing>(&fenced, &seen).await, WriteOutcome::Written);

    server.partition();
    let step = async {
        fenced.get::<Thing>(&seen.key()).await.unwrap();
        sleep(20 * SECOND).await;
        write::delete::<Thing>(&fenced, &seen).await
    };
    let outcome = step.await;
    assert!(
        matches!(&outcome, WriteOutcome::Failed(ApiError::Unavailable(refusal)) if refusal.message.contains("lease"))
    );
    assert_eq!(*server.requests.lock().unwrap(), ["DELETE", "GET"]);
    // Reads and other roles are not affected.
    fenced.get::<Thing>(&seen.key()).await.unwrap();
    assert_eq!(write::delete::<Thing>(&server.cluster, &seen).await, WriteOutcome::Written);
}

/// A request that the server has not answered at the renew deadline.
#[tokio::test(start_paused = true)]
async fn running_write_is_cancelled_at_the_renew_deadline() {
    let server = server();
    let leadership = server.lead().await;
    let silent = cluster(|_| Reply::Never).fenced(Some(&leadership));
    server.partition();
    let started = Instant::now();
    let key = decoded(thing("a", 3, "red")).metadata.key();
    let deleted = silent.delete(&Thing::API, &key, crate::Preconditions::default()).await;
    assert!(matches!(deleted, Err(ApiError::Unavailable(_))), "{deleted:?}");
    assert!(started.elapsed() <= 10 * SECOND, "{:?}", started.elapsed());
}

/// S-M1: a call to the driver must not go on while another replica acts.
#[tokio::test(start_paused = true)]
async fn running_work_is_dropped_at_the_renew_deadline_and_started_again() {
    let server = server();
    let leadership = server.lead().await;
    let stop = CancellationToken::new();
    let gate = Gate::new(Some(leadership.clone()), stop.clone());
    let queue = Queue::new("test", Backoff::default(), &Metrics::default());
    queue.add(1, Priority::Normal);
    let (started, dropped) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::<Mutex<Vec<Instant>>>::default());
    struct OnDrop(Arc<Mutex<Vec<Instant>>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.lock().unwrap().push(Instant::now());
        }
    }
    let reconcile = |_| {
        let (started, on_drop) = (Arc::clone(&started), OnDrop(Arc::clone(&dropped)));
        async move {
            let _on_drop = on_drop;
            started.lock().unwrap().push(Instant::now());
            sleep(1000 * SECOND).await;
            WorkOutcome::Done
        }
    };
    let begin = Instant::now();
    let story = async {
        sleep(SECOND).await;
        server.partition();
        sleep(30 * SECOND).await;
        assert!(!gate.is_open() && dropped.lock().unwrap().len() == 1);
        assert!(dropped.lock().unwrap()[0] - begin <= 10 * SECOND);
        assert!(!gate.dropped_work(), "after the lease duration the calls have ended");
        *server.no_leases.lock().unwrap() = false;
        sleep(10 * SECOND).await;
        assert_eq!(started.lock().unwrap().len(), 2, "the key is processed again");
        stop.cancel();
    };
    tokio::join!(run_workers(&queue, &gate, 1, reconcile), story);
    assert!(gate.dropped_work(), "the stop dropped the second run");
}

/// A process that acquires its own lease again does not act while cancelled calls may still run.
#[tokio::test(start_paused = true)]
async fn lease_that_is_acquired_again_leaves_cancelled_calls_time_to_end() {
    let server = server();
    let options = LeaseOptions { retry_period: SECOND, ..LeaseOptions::new("ns", "role", "one") };
    let leadership = Leadership::start(&server.cluster, options);
    leadership.wait_acquired().await;
    let stop = CancellationToken::new();
    let gate = Gate::new(Some(leadership.clone()), stop.clone());
    let queue = Queue::new("test", Backoff::default(), &Metrics::default());
    queue.add(1, Priority::Normal);
    let started = Arc::<Mutex<Vec<Instant>>>::default();
    let reconcile = |_| {
        let started = Arc::clone(&started);
        async move {
            started.lock().unwrap().push(Instant::now());
            sleep(1000 * SECOND).await;
            WorkOutcome::Done
        }
    };
    let story = async {
        sleep(SECOND).await;
        server.partition();
        leadership.wait_lost().await;
        let lost = Instant::now();
        *server.no_leases.lock().unwrap() = false;
        leadership.wait_acquired().await;
        assert!(lost.elapsed() < 4 * SECOND && !gate.is_open(), "{:?}", lost.elapsed());
        gate.wait_open().await;
        assert!(lost.elapsed() >= 5 * SECOND && gate.is_open(), "{:?}", lost.elapsed());
        sleep(SECOND).await;
        let restarted = started.lock().unwrap()[1];
        assert!(restarted - lost >= 5 * SECOND, "{:?}", restarted - lost);
        stop.cancel();
    };
    tokio::join!(run_workers(&queue, &gate, 1, reconcile), story);
}

/// A role that outlives its candidate must neither act nor keep the runtime busy.
#[tokio::test(start_paused = true)]
async fn fence_of_an_aborted_candidate_closes_at_the_deadline() {
    let server = server();
    let leadership = server.lead().await;
    let fence = leadership.fence().clone();
    drop(leadership);
    let ended = timeout(11 * SECOND, fence.run(std::future::pending::<()>())).await;
    assert_eq!(ended, Ok(None));
    assert!(timeout(60 * SECOND, fence.wait(true)).await.is_err());
}
