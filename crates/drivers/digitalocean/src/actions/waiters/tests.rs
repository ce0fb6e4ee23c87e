use super::*;
use crate::api::Region;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn volume(number: u64, droplets: &[u64]) -> Volume {
    Volume {
        id: format!("v{number}"),
        name: format!("pvc-{number}"),
        region: Region { slug: "nyc3".into() },
        droplet_ids: droplets.to_vec(),
        size_gigabytes: 1,
        description: String::new(),
        created_at: String::new(),
        filesystem_type: String::new(),
        tags: vec![],
    }
}

/// `count` waiters, each attaching its own volume to droplet 1.
fn waiters(count: u64, now: Instant) -> Waiters {
    let mut waiters = Waiters::new(PollingOptions::default(), now);
    for number in 0..count {
        let waiter = Waiter {
            volume: format!("v{number}"),
            goal: Goal::Attached(1),
            action: 100 + number,
            since: now,
        };
        waiters.add(waiter, now, 0.0);
    }
    waiters
}

#[test]
fn few_actions_are_polled_individually_and_many_by_listing() {
    let now = Instant::now();
    for (count, pages, listing) in [
        (1, 1, false),
        (3, 1, false),
        (4, 1, true),
        (100, 1, true),
        (5, 6, false),
        (6, 6, false),
        (7, 6, true),
    ] {
        let mut waiters = waiters(count, now);
        let volumes = (0..pages * PER_PAGE as u64).map(|number| volume(number, &[])).collect();
        waiters.listed(volumes, now);
        assert_eq!(waiters.plan() == Plan::Listing, listing, "{count} waiters, {pages} pages");
    }
    assert_eq!(waiters(0, now).plan(), Plan::Idle);
    let one = Plan::Actions(vec![(0, "v0".into(), 100)]);
    assert_eq!(waiters(1, now).plan(), one);
}

#[test]
fn listing_completes_only_waiters_whose_volume_reached_its_goal() {
    let now = Instant::now();
    let mut waiters = waiters(4, now);
    // v0 is attached to droplet 1, v1 to another droplet, v2 to none, and v3 is not listed.
    let outcomes = waiters.listed(vec![volume(0, &[1]), volume(1, &[2]), volume(2, &[])], now + seconds(1));
    assert_eq!(outcomes, [(0, Outcome::Reached(volume(0, &[1])))]);
    let detaching = Waiter { volume: "v9".into(), goal: Goal::Detached(1), action: 1, since: now };
    let ticket = waiters.add(detaching, now, 0.0);
    assert!(waiters.urgent());
    assert!(
        waiters.listed(vec![], now + seconds(1)).is_empty(),
        "a volume that is not listed must not count as detached"
    );
    let outcomes = waiters.listed(vec![volume(9, &[])], now + seconds(1));
    assert_eq!(outcomes, [(ticket, Outcome::Reached(volume(9, &[])))]);
}

/// Such a listing may predate the action. A volume whose attach was still running looks unattached in it, and must not
/// count as detached.
#[test]
fn listing_requested_before_the_waiter_was_added_is_ignored() {
    let requested = Instant::now();
    let added = requested + seconds(1);
    let mut waiters = waiters(1, requested - seconds(1));
    for (number, since) in [(8, requested), (9, added)] {
        let detaching = Waiter { volume: format!("v{number}"), goal: Goal::Detached(1), action: 1, since };
        waiters.add(detaching, added, 0.0);
    }
    let volumes = || vec![volume(0, &[1]), volume(8, &[]), volume(9, &[])];
    let tickets =
        |outcomes: Vec<(u64, Outcome)>| outcomes.into_iter().map(|(ticket, _)| ticket).collect::<Vec<_>>();
    assert_eq!(tickets(waiters.listed(volumes(), requested)), [0]);
    assert_eq!(tickets(waiters.listed(volumes(), added + seconds(1))), [0, 1, 2]);
}

#[test]
fn overdue_actions_are_polled_with_growing_intervals() {
    let now = Instant::now();
    let mut many = waiters(10, now);
    assert!(many.overdue(now + seconds(11)).is_empty());
    // Ten actions are overdue. Each round polls at most four, and no action twice before all others.
    let mut requested = Vec::new();
    for second in 12..16 {
        let round = many.overdue(now + seconds(second));
        assert!(round.len() <= 4);
        requested.extend(round.into_iter().map(|(ticket, ..)| ticket));
    }
    assert_eq!(requested, (0..10).collect::<Vec<_>>());
    let mut one = waiters(1, now);
    let when: Vec<u64> = (0..200).filter(|second| !one.overdue(now + seconds(*second)).is_empty()).collect();
    assert_eq!(when, [12, 24, 48, 96, 192]);
}

#[test]
fn interval_grows_until_a_waiter_finishes() {
    let now = Instant::now();
    let intervals = |mut waiters: Waiters, rounds: usize| {
        let mut intervals = vec![waiters.due() - now];
        for _ in 1..rounds {
            waiters.schedule_next(now, false, 0.0);
            intervals.push(waiters.due() - now);
        }
        intervals.iter().map(Duration::as_millis).collect::<Vec<_>>()
    };
    assert_eq!(intervals(waiters(1, now), 6), [1000, 1500, 2250, 3375, 5000, 5000]);
    let mut many = waiters(20, now);
    many.schedule_next(now, true, 0.0);
    assert_eq!(intervals(many, 4), [2000, 3000, 4500, 5000]);
    // Jitter shortens the interval, never lengthens it.
    let mut one = waiters(1, now);
    one.schedule_next(now, true, 1.0);
    assert_eq!((one.due() - now).as_millis(), 900);
}

#[test]
fn new_waiter_resets_a_long_interval() {
    let now = Instant::now();
    let mut waiters = waiters(1, now);
    for _ in 0..10 {
        waiters.schedule_next(now, false, 0.0);
    }
    assert_eq!(waiters.due(), now + seconds(5));
    let waiter = Waiter { volume: "new".into(), goal: Goal::Attached(2), action: 1, since: now };
    waiters.add(waiter, now + seconds(1), 0.0);
    assert_eq!(waiters.due(), now + seconds(2));
}

#[test]
fn requests_per_round_do_not_grow_with_the_number_of_waiters() {
    let now = Instant::now();
    for (count, max) in [(1, 1), (3, 3), (4, 1 + 4), (20, 1 + 4), (1000, 1 + 4)] {
        let mut waiters = waiters(count, now);
        let requests = match waiters.plan() {
            Plan::Idle => 0,
            Plan::Actions(actions) => actions.len(),
            Plan::Listing => 1 + waiters.overdue(now + seconds(3600)).len(),
        };
        assert!(requests <= max, "{count} waiters: {requests}");
    }
}
