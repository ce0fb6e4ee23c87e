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

/// As many as asked for, each attaching its own volume to droplet 1.
fn waiting(count: u64, now: Instant) -> Waiting {
    let mut waiting = Waiting::new(Pace::default(), now);
    for number in 0..count {
        let waiter = Waiter {
            volume: format!("v{number}"),
            goal: Goal::Attached(1),
            action: 100 + number,
            since: now,
        };
        waiting.enter(waiter, now, 0.0);
    }
    waiting
}

#[test]
fn few_are_asked_one_by_one_and_many_at_once() {
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
        let mut waiting = waiting(count, now);
        let volumes = (0..pages * PER_PAGE as u64).map(|number| volume(number, &[])).collect();
        waiting.listed(volumes, now);
        assert_eq!(waiting.plan() == Plan::Listing, listing, "{count} who wait, {pages} pages");
    }
    assert_eq!(waiting(0, now).plan(), Plan::Rest);
    let one = Plan::Actions(vec![(0, "v0".into(), 100)]);
    assert_eq!(waiting(1, now).plan(), one);
}

#[test]
fn a_listing_tells_of_what_it_shows_and_of_nothing_else() {
    let now = Instant::now();
    let mut waiting = waiting(4, now);
    // v0 is there, v1 elsewhere, v2 nowhere, v3 not listed.
    let told = waiting.listed(vec![volume(0, &[1]), volume(1, &[2]), volume(2, &[])], now + seconds(1));
    assert_eq!(told, [(0, Outcome::Reached(volume(0, &[1])))]);
    let detaching = Waiter { volume: "v9".into(), goal: Goal::Detached(1), action: 1, since: now };
    let ticket = waiting.enter(detaching, now, 0.0);
    assert!(waiting.urgent());
    assert!(waiting.listed(vec![], now + seconds(1)).is_empty(), "absent from a listing is not detached");
    let told = waiting.listed(vec![volume(9, &[])], now + seconds(1));
    assert_eq!(told, [(ticket, Outcome::Reached(volume(9, &[])))]);
}

/// It may have been answered before the action was begun: a volume whose attach was still under way then is shown
/// nowhere, and would be taken for detached.
#[test]
fn a_listing_from_before_somebody_waited_tells_him_nothing() {
    let asked = Instant::now();
    let came = asked + seconds(1);
    let mut waiting = waiting(1, asked - seconds(1));
    for (number, since) in [(8, asked), (9, came)] {
        let detaching = Waiter { volume: format!("v{number}"), goal: Goal::Detached(1), action: 1, since };
        waiting.enter(detaching, came, 0.0);
    }
    let volumes = || vec![volume(0, &[1]), volume(8, &[]), volume(9, &[])];
    let told = |told: Vec<(u64, Outcome)>| told.into_iter().map(|(ticket, _)| ticket).collect::<Vec<_>>();
    assert_eq!(told(waiting.listed(volumes(), asked)), [0]);
    assert_eq!(told(waiting.listed(volumes(), came + seconds(1))), [0, 1, 2]);
}

#[test]
fn what_takes_long_is_asked_for_itself_more_and_more_seldom() {
    let now = Instant::now();
    let mut many = waiting(10, now);
    assert!(many.overdue(now + seconds(11)).is_empty());
    // Ten are overdue; each round asks four at most, and nobody twice before all were asked.
    let mut asked = Vec::new();
    for second in 12..16 {
        let round = many.overdue(now + seconds(second));
        assert!(round.len() <= 4);
        asked.extend(round.into_iter().map(|(ticket, ..)| ticket));
    }
    assert_eq!(asked, (0..10).collect::<Vec<_>>());
    let mut one = waiting(1, now);
    let when: Vec<u64> = (0..200).filter(|second| !one.overdue(now + seconds(*second)).is_empty()).collect();
    assert_eq!(when, [12, 24, 48, 96, 192]);
}

#[test]
fn pauses_grow_until_there_is_news() {
    let now = Instant::now();
    let pauses = |mut waiting: Waiting, rounds: usize| {
        let mut pauses = vec![waiting.due() - now];
        for _ in 1..rounds {
            waiting.rest(now, false, 0.0);
            pauses.push(waiting.due() - now);
        }
        pauses.iter().map(Duration::as_millis).collect::<Vec<_>>()
    };
    assert_eq!(pauses(waiting(1, now), 6), [1000, 1500, 2250, 3375, 5000, 5000]);
    let mut many = waiting(20, now);
    many.rest(now, true, 0.0);
    assert_eq!(pauses(many, 4), [2000, 3000, 4500, 5000]);
    // Shortened by chance, never lengthened.
    let mut one = waiting(1, now);
    one.rest(now, true, 1.0);
    assert_eq!((one.due() - now).as_millis(), 900);
}

#[test]
fn who_comes_does_not_wait_for_the_long_pause_of_others() {
    let now = Instant::now();
    let mut waiting = waiting(1, now);
    for _ in 0..10 {
        waiting.rest(now, false, 0.0);
    }
    assert_eq!(waiting.due(), now + seconds(5));
    let waiter = Waiter { volume: "new".into(), goal: Goal::Attached(2), action: 1, since: now };
    waiting.enter(waiter, now + seconds(1), 0.0);
    assert_eq!(waiting.due(), now + seconds(2));
}

// The promise of the module.
#[test]
fn the_cost_of_a_round_does_not_grow_with_those_who_wait() {
    let now = Instant::now();
    for (count, most) in [(1, 1), (3, 3), (4, 1 + 4), (20, 1 + 4), (1000, 1 + 4)] {
        let mut waiting = waiting(count, now);
        let requests = match waiting.plan() {
            Plan::Rest => 0,
            Plan::Actions(actions) => actions.len(),
            Plan::Listing => 1 + waiting.overdue(now + seconds(3600)).len(),
        };
        assert!(requests <= most, "{count} who wait: {requests}");
    }
}
