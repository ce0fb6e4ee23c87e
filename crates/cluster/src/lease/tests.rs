//! Candidates for one lease, on a server with optimistic locking.

use super::*;
use crate::testing::{Objects, ReceivedRequest, Reply, cluster};
use std::sync::Mutex as StdMutex;
use tokio::time::timeout;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/role";
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct Server {
    objects: Arc<StdMutex<Objects>>,
}

impl Server {
    fn cluster(&self) -> (Cluster, Arc<StdMutex<bool>>) {
        let down = Arc::new(StdMutex::new(false));
        let (objects, is_down) = (Arc::clone(&self.objects), Arc::clone(&down));
        let cluster = cluster(move |request: ReceivedRequest| match *is_down.lock().unwrap() {
            true => Reply::Never,
            false => objects.lock().unwrap().respond(&request),
        });
        (cluster, down)
    }

    fn spec(&self) -> Value {
        self.objects.lock().unwrap().by_path[PATH]["spec"].clone()
    }

    /// The process that holds the lease, without the random part of its identity.
    fn holder(&self) -> String {
        let spec = self.spec();
        let holder = spec["holderIdentity"].as_str().unwrap();
        holder.rsplit_once('_').map_or(holder, |(process, _)| process).to_owned()
    }
}

fn options(process: &str) -> LeaseOptions {
    LeaseOptions::new("ns", "role", process)
}

/// sidecars.md 1.0 "Release on exit".
#[tokio::test(start_paused = true)]
async fn second_candidate_takes_over_immediately_after_a_release() {
    let server = Server::default();
    let ((one, _), (two, _)) = (server.cluster(), server.cluster());
    let one = Leadership::start(&one, options("one"));
    one.wait_acquired().await;
    let two = Leadership::start(&two, options("two"));
    for _ in 0..60 {
        tokio::time::sleep(SECOND).await;
        assert!(one.is_leader() && !two.is_leader());
    }
    assert_eq!(server.holder(), "one");
    assert_eq!(server.spec()["leaseTransitions"], 0);

    let started = Instant::now();
    one.release(5 * SECOND).await;
    assert!(!one.is_leader());
    two.wait_acquired().await;
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    assert_eq!(server.holder(), "two");
    assert_eq!(server.spec()["leaseTransitions"], 1);
    assert!(
        timeout(60 * SECOND, one.wait_acquired()).await.is_err(),
        "a released lease is not acquired again"
    );
}

#[tokio::test(start_paused = true)]
async fn disconnected_holder_stops_before_the_other_starts_and_can_return() {
    let server = Server::default();
    let ((one, down), (two, _)) = (server.cluster(), server.cluster());
    let one = Leadership::start(&one, options("one"));
    one.wait_acquired().await;
    let two = Leadership::start(&two, options("two"));
    tokio::time::sleep(10 * SECOND).await;

    *down.lock().unwrap() = true;
    let cut = Instant::now();
    one.wait_lost().await;
    let lost = cut.elapsed();
    assert!(lost <= 10 * SECOND, "{lost:?}");
    assert!(!two.is_leader());
    two.wait_acquired().await;
    let taken = cut.elapsed();
    assert!(taken > lost + SECOND && taken < 25 * SECOND, "{lost:?} {taken:?}");

    // The process keeps running; the other holds the lease until it releases it.
    *down.lock().unwrap() = false;
    tokio::time::sleep(30 * SECOND).await;
    assert!(two.is_leader() && !one.is_leader());
    two.release(5 * SECOND).await;
    timeout(8 * SECOND, one.wait_acquired()).await.unwrap();
}

/// sidecars.md 1.0 "Leader election": renew deadline 10 s. A restarting server rejects one renewal, which is no reason
/// to stop.
#[tokio::test(start_paused = true)]
async fn one_rejected_renewal_does_not_lose_the_lease() {
    let server = Server::default();
    let (refusing, objects) = (Arc::new(StdMutex::new(false)), Arc::clone(&server.objects));
    let refuses = Arc::clone(&refusing);
    let cluster = cluster(move |request: ReceivedRequest| match *refuses.lock().unwrap() {
        true => crate::testing::status(503, "ServiceUnavailable", ""),
        false => objects.lock().unwrap().respond(&request),
    });
    let leadership = Leadership::start(&cluster, options("one"));
    leadership.wait_acquired().await;
    for _ in 0..10 {
        tokio::time::sleep(3 * SECOND).await;
        *refusing.lock().unwrap() = true;
        let lost = timeout(3 * SECOND, leadership.wait_lost()).await;
        *refusing.lock().unwrap() = false;
        assert!(lost.is_err());
        assert!(timeout(7 * SECOND, leadership.wait_lost()).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn competing_candidates_never_hold_the_lease_together() {
    let server = Server::default();
    let candidates: Vec<_> = (0..5)
        .map(|number| {
            let (cluster, down) = server.cluster();
            (Leadership::start(&cluster, options(&format!("c{number}"))), down)
        })
        .collect();
    let mut held = std::collections::BTreeSet::new();
    for round in 0..3000_usize {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let holders: Vec<usize> = (0..5).filter(|number| candidates[*number].0.is_leader()).collect();
        assert!(holders.len() <= 1, "{holders:?}");
        held.extend(holders);
        // Each is disconnected in turn for longer than the lease duration.
        for (number, (_, down)) in candidates.iter().enumerate() {
            *down.lock().unwrap() = round / 300 % 5 == number;
        }
    }
    assert!(held.len() >= 2, "{held:?}");
}

/// A-M1: two processes of one host, or a restarted one whose predecessor may still be running.
#[tokio::test(start_paused = true)]
async fn processes_of_one_name_never_both_hold_the_lease() {
    let server = Server::default();
    let ((one, _), (two, _)) = (server.cluster(), server.cluster());
    let one = Leadership::start(&one, options("host"));
    one.wait_acquired().await;
    let two = Leadership::start(&two, options("host"));
    for _ in 0..60 {
        tokio::time::sleep(SECOND).await;
        assert!(one.is_leader() && !two.is_leader());
    }
    drop(one);
    tokio::time::sleep(SECOND).await;
    let holder = server.spec()["holderIdentity"].clone();
    let uuid = holder.as_str().unwrap().strip_prefix("host_").expect("a dropped lease is not released");
    assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{uuid}");
    let dropped = Instant::now();
    two.wait_acquired().await;
    assert!(dropped.elapsed() > 8 * SECOND && dropped.elapsed() < 20 * SECOND, "{:?}", dropped.elapsed());
    assert_ne!(server.spec()["holderIdentity"], holder);
}

#[tokio::test(start_paused = true)]
async fn fields_set_by_others_are_preserved() {
    let server = Server::default();
    let (cluster, _) = server.cluster();
    let mut labelled = options("one");
    labelled.labels.insert("team".into(), "storage".into());
    let leadership = Leadership::start(&cluster, labelled);
    leadership.wait_acquired().await;
    {
        let mut objects = server.objects.lock().unwrap();
        let lease = objects.by_path.get_mut(PATH).unwrap();
        assert_eq!(lease["metadata"]["labels"]["team"], "storage");
        lease["metadata"]["annotations"] = json!({"note": "mine"});
        lease["metadata"]["resourceVersion"] = json!("500");
    }
    for _ in 0..20 {
        tokio::time::sleep(SECOND).await;
        assert!(leadership.is_leader(), "a conflict does not lose the lease");
    }
    let objects = server.objects.lock().unwrap();
    assert_eq!(objects.by_path[PATH]["metadata"]["annotations"]["note"], "mine");
}

/// S-H2: a process whose driver is dead lets another one act, and comes back.
#[tokio::test(start_paused = true)]
async fn process_that_stands_aside_lets_another_lead_and_competes_again() {
    for (standing, at_least, at_most) in [(Standing::Release, 0, 1), (Standing::Expire, 8, 20)] {
        let server = Server::default();
        let ((one, _), (two, _)) = (server.cluster(), server.cluster());
        let one = Leadership::start(&one, options("one"));
        one.wait_acquired().await;
        let two = Leadership::start(&two, options("two"));
        tokio::time::sleep(7 * SECOND).await;
        one.set_standing(standing);
        let aside = Instant::now();
        one.wait_lost().await;
        assert!(aside.elapsed() < SECOND, "{standing:?}: work ends at once");
        two.wait_acquired().await;
        let took = aside.elapsed();
        assert!(took >= at_least * SECOND && took <= at_most * SECOND, "{standing:?}: {took:?}");
        two.set_standing(Standing::Release);
        assert!(timeout(60 * SECOND, one.wait_acquired()).await.is_err(), "{standing:?}");
        one.set_standing(Standing::Compete);
        timeout(8 * SECOND, one.wait_acquired()).await.unwrap();
    }
}

/// S-L7: unhealthy only as the holder of a lease that was not renewed for 35 s.
#[tokio::test(start_paused = true)]
async fn holder_that_cannot_renew_is_reported() {
    let server = Server::default();
    let ((one, down), (two, _)) = (server.cluster(), server.cluster());
    let one = Leadership::start(&one, options("one"));
    assert_eq!(one.check_renewal(), Ok(()), "not yet the holder");
    one.wait_acquired().await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(one.check_renewal(), Ok(()));
    *down.lock().unwrap() = true;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(one.check_renewal(), Ok(()));
    tokio::time::sleep(10 * SECOND).await;
    assert!(!one.is_leader() && one.check_renewal().unwrap_err().contains("role"));
    let two = Leadership::start(&two, options("two"));
    two.wait_acquired().await;
    *down.lock().unwrap() = false;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(one.check_renewal(), Ok(()), "another process holds the lease");
}

/// Durations at the limits of their types, as options and in the lease of another process.
#[tokio::test(start_paused = true)]
async fn extreme_durations_are_limited() {
    let server = Server::default();
    let (cluster, _) = server.cluster();
    let longest = LeaseOptions {
        lease_duration: Duration::MAX,
        renew_deadline: Duration::MAX,
        retry_period: Duration::MAX,
        ..options("one")
    };
    let one = Leadership::start(&cluster, longest);
    timeout(SECOND, one.wait_acquired()).await.unwrap();
    assert_eq!(server.spec()["leaseDurationSeconds"], i32::MAX);
    assert_eq!(one.check_renewal(), Ok(()));
    one.release(SECOND).await;

    // None: not within a day.
    for (seconds, waits) in [(i64::MIN, Some(15)), (-1, Some(15)), (0, Some(0)), (i64::MAX, None)] {
        {
            let mut objects = server.objects.lock().unwrap();
            let spec = &mut objects.by_path.get_mut(PATH).unwrap()["spec"];
            (spec["holderIdentity"], spec["leaseDurationSeconds"]) = ("other".into(), seconds.into());
        }
        let two = Leadership::start(&cluster, options("two"));
        let started = Instant::now();
        let acquired =
            timeout(24 * 3600 * SECOND, two.wait_acquired()).await.ok().map(|()| started.elapsed());
        let expected = waits.map(|seconds| seconds * SECOND..(seconds + 8) * SECOND);
        match (acquired, expected) {
            (Some(waited), Some(expected)) => assert!(expected.contains(&waited), "{seconds}: {waited:?}"),
            (acquired, expected) => assert_eq!(acquired.is_none(), expected.is_none(), "{seconds}"),
        }
        two.release(SECOND).await;
    }
}

/// A lease contains whole seconds. With 1 instead of 1.9 another process would lead before the renew deadline of 1.5 s.
#[tokio::test(start_paused = true)]
async fn fractional_lease_duration_is_written_rounded_up() {
    for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (1900, 2), (15_000, 15)] {
        assert_eq!(written_lease_duration(Duration::from_millis(millis)).as_secs(), seconds, "{millis}");
    }
    let server = Server::default();
    let ((one, one_down), (two, _)) = (server.cluster(), server.cluster());
    let options = |process| LeaseOptions {
        lease_duration: Duration::from_millis(1900),
        renew_deadline: Duration::from_millis(1500),
        retry_period: Duration::from_millis(100),
        ..options(process)
    };
    let one = Leadership::start(&one, options("one"));
    one.wait_acquired().await;
    let two = Leadership::start(&two, options("two"));
    tokio::time::sleep(SECOND).await;
    *one_down.lock().unwrap() = true;
    let partitioned = Instant::now();
    while !two.is_leader() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!(one.is_leader() && two.is_leader()), "two leaders after {:?}", partitioned.elapsed());
    }
    assert_eq!(server.spec()["leaseDurationSeconds"], 2);
    assert!(partitioned.elapsed() < 4 * SECOND);
}
