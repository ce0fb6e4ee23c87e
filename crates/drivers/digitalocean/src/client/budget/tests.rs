use super::Priority::{Normal, Urgent};
use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn limits(limit: u64, remaining: u64, reset: u64) -> Limits {
    Limits {
        limit: Some(limit),
        remaining: Some(remaining),
        reset: Some(seconds(reset)),
        ..Limits::default()
    }
}

/// How many requests are admitted at this moment.
fn admitted(budget: &mut Budget, now: Instant, priority: Priority) -> usize {
    (0..10_000).take_while(|_| budget.try_acquire(now, priority) == Admission::Now).count()
}

#[test]
fn minute_limit_keeps_a_reserve_for_urgent_requests() {
    let start = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!(admitted(&mut budget, start, Normal), 225);
    assert_eq!(budget.try_acquire(start, Normal), Admission::WaitUntil(start + MINUTE));
    assert_eq!(admitted(&mut budget, start + seconds(10), Urgent), 25);
    assert_eq!(budget.try_acquire(start + seconds(10), Urgent), Admission::WaitUntil(start + MINUTE));
    // The 25 urgent requests expire last, and count against all priorities until then.
    assert_eq!(admitted(&mut budget, start + MINUTE, Normal), 200);
    assert_eq!(budget.try_acquire(start + MINUTE, Normal), Admission::WaitUntil(start + seconds(70)));
}

#[test]
fn no_minute_exceeds_the_limit() {
    let start = Instant::now();
    let mut budget = Budget::new(50);
    let mut sent = Vec::new();
    for tenth in 0..3_000_u64 {
        let now = start + Duration::from_millis(tenth * 100);
        let priority = if tenth % 7 == 0 { Urgent } else { Normal };
        if budget.try_acquire(now, priority) == Admission::Now {
            budget.complete(now, Limits::default());
            sent.push(now);
        }
    }
    for (position, first) in sent.iter().enumerate() {
        let within = sent[position..].iter().take_while(|later| **later < *first + MINUTE).count();
        assert!(within <= 50, "{within}");
    }
    assert!(sent.len() > 225, "{}", sent.len());
}

#[test]
fn hour_limit_keeps_a_reserve_for_urgent_requests() {
    let now = Instant::now();
    // limit, remaining, admitted Normal requests, then admitted Urgent requests
    for (limit, remaining, normal, urgent) in [
        (5000, 600, 100, 150),
        (5000, 500, 0, 250),
        (5000, 3, 0, 3),
        (5000, 0, 0, 0),
        (10, 3, 2, 1),
        (1, 1, 1, 0),
    ] {
        let mut budget = Budget::new(250);
        assert_eq!(budget.try_acquire(now, Normal), Admission::Now);
        budget.complete(now, limits(limit, remaining, 40));
        // One request of the minute is used.
        assert_eq!(admitted(&mut budget, now, Normal), normal, "{limit} {remaining}");
        let left = 249 - normal;
        assert_eq!(admitted(&mut budget, now, Urgent), urgent.min(left), "{limit} {remaining}");
        if remaining < 100 {
            assert_eq!(
                budget.try_acquire(now, Normal),
                Admission::WaitUntil(now + seconds(40)),
                "{limit} {remaining}"
            );
        }
    }
}

#[test]
fn requests_in_flight_are_counted() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    for _ in 0..5 {
        assert_eq!(budget.try_acquire(now, Urgent), Admission::Now);
    }
    // Four more are in flight, which the response may not include.
    budget.complete(now, limits(100, 10, 40));
    assert_eq!(admitted(&mut budget, now, Urgent), 6);
}

#[test]
fn one_request_is_admitted_after_the_reset() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!(budget.try_acquire(now, Normal), Admission::Now);
    budget.complete(now, limits(100, 0, 40));
    assert_eq!(budget.try_acquire(now + seconds(39), Urgent), Admission::WaitUntil(now + seconds(40)));
    assert_eq!(admitted(&mut budget, now + seconds(40), Normal), 1);
    assert_eq!(budget.try_acquire(now + seconds(40), Normal), Admission::WaitUntil(now + seconds(41)));
    budget.complete(now + seconds(40), limits(100, 90, 40));
    assert_eq!(admitted(&mut budget, now + seconds(40), Normal), 80);
}

#[test]
fn refusal_blocks_all_priorities() {
    let now = Instant::now();
    let refused = Limits { refused: true, ..Limits::default() };
    // reported limits, seconds until requests are admitted
    for (limits, closed) in [
        (Limits { retry_after: Some(seconds(33)), ..refused }, 33),
        (Limits { retry_after: Some(seconds(0)), ..refused }, 1),
        (Limits { refused: true, ..limits(5000, 0, 50) }, 50),
        // The limit per minute, without a time: the hour's reset does not apply to it.
        (Limits { refused: true, ..limits(5000, 4000, 50) }, 5),
        (refused, 5),
    ] {
        let mut budget = Budget::new(250);
        assert_eq!(budget.try_acquire(now, Normal), Admission::Now);
        budget.complete(now, limits);
        let until = now + seconds(closed);
        assert_eq!(budget.try_acquire(now, Urgent), Admission::WaitUntil(until), "{limits:?}");
        assert_eq!(budget.try_acquire(until, Urgent), Admission::Now, "{limits:?}");
    }
}

#[test]
fn later_shorter_refusal_does_not_unblock_early() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!(
        (budget.try_acquire(now, Normal), budget.try_acquire(now, Normal)),
        (Admission::Now, Admission::Now)
    );
    budget.complete(now, Limits { refused: true, retry_after: Some(seconds(30)), ..Limits::default() });
    budget.complete(now, Limits { refused: true, retry_after: Some(seconds(3)), ..Limits::default() });
    assert_eq!(budget.try_acquire(now, Normal), Admission::WaitUntil(now + seconds(30)));
}
