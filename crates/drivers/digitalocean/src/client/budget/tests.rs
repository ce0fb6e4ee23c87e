use super::Priority::{Normal, Urgent};
use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn told(limit: u64, remaining: u64, reset: u64) -> Limits {
    Limits {
        limit: Some(limit),
        remaining: Some(remaining),
        reset: Some(seconds(reset)),
        ..Limits::default()
    }
}

/// How many requests go at this moment.
fn go(budget: &mut Budget, now: Instant, priority: Priority) -> usize {
    (0..10_000).take_while(|_| budget.ask(now, priority) == Turn::Go).count()
}

#[test]
fn a_minute_has_its_limit_and_its_reserve() {
    let start = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!(go(&mut budget, start, Normal), 225);
    assert_eq!(budget.ask(start, Normal), Turn::Wait(start + MINUTE));
    assert_eq!(go(&mut budget, start + seconds(10), Urgent), 25);
    assert_eq!(budget.ask(start + seconds(10), Urgent), Turn::Wait(start + MINUTE));
    // The 25 of the reserve are forgotten last, and count against everybody until then.
    assert_eq!(go(&mut budget, start + MINUTE, Normal), 200);
    assert_eq!(budget.ask(start + MINUTE, Normal), Turn::Wait(start + seconds(70)));
}

#[test]
fn never_more_than_the_limit_in_any_minute() {
    let start = Instant::now();
    let mut budget = Budget::new(50);
    let mut sent = Vec::new();
    for tenth in 0..3_000_u64 {
        let now = start + Duration::from_millis(tenth * 100);
        let priority = if tenth % 7 == 0 { Urgent } else { Normal };
        if budget.ask(now, priority) == Turn::Go {
            budget.answered(now, Limits::default());
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
fn the_hours_reserve_is_for_the_urgent() {
    let now = Instant::now();
    // limit, remaining, how many go for Normal, and then for Urgent
    for (limit, remaining, normal, urgent) in [
        (5000, 600, 100, 150),
        (5000, 500, 0, 250),
        (5000, 3, 0, 3),
        (5000, 0, 0, 0),
        (10, 3, 2, 1),
        (1, 1, 1, 0),
    ] {
        let mut budget = Budget::new(250);
        assert_eq!(budget.ask(now, Normal), Turn::Go);
        budget.answered(now, told(limit, remaining, 40));
        // One of the minute's is spent.
        assert_eq!(go(&mut budget, now, Normal), normal, "{limit} {remaining}");
        let left = 249 - normal;
        assert_eq!(go(&mut budget, now, Urgent), urgent.min(left), "{limit} {remaining}");
        if remaining < 100 {
            assert_eq!(budget.ask(now, Normal), Turn::Wait(now + seconds(40)), "{limit} {remaining}");
        }
    }
}

#[test]
fn requests_under_way_are_counted() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    for _ in 0..5 {
        assert_eq!(budget.ask(now, Urgent), Turn::Go);
    }
    // Four more are on their way, of which the answer may not know.
    budget.answered(now, told(100, 10, 40));
    assert_eq!(go(&mut budget, now, Urgent), 6);
}

#[test]
fn after_the_reset_one_goes_first() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!(budget.ask(now, Normal), Turn::Go);
    budget.answered(now, told(100, 0, 40));
    assert_eq!(budget.ask(now + seconds(39), Urgent), Turn::Wait(now + seconds(40)));
    assert_eq!(go(&mut budget, now + seconds(40), Normal), 1);
    assert_eq!(budget.ask(now + seconds(40), Normal), Turn::Wait(now + seconds(41)));
    budget.answered(now + seconds(40), told(100, 90, 40));
    assert_eq!(go(&mut budget, now + seconds(40), Normal), 80);
}

#[test]
fn a_refusal_closes_for_all() {
    let now = Instant::now();
    let refused = Limits { refused: true, ..Limits::default() };
    // what was told, seconds until it opens
    for (limits, closed) in [
        (Limits { retry_after: Some(seconds(33)), ..refused }, 33),
        (Limits { retry_after: Some(seconds(0)), ..refused }, 1),
        (Limits { refused: true, ..told(5000, 0, 50) }, 50),
        // The minute's limit, without a word on when: the hour's reset says nothing about that.
        (Limits { refused: true, ..told(5000, 4000, 50) }, 5),
        (refused, 5),
    ] {
        let mut budget = Budget::new(250);
        assert_eq!(budget.ask(now, Normal), Turn::Go);
        budget.answered(now, limits);
        let until = now + seconds(closed);
        assert_eq!(budget.ask(now, Urgent), Turn::Wait(until), "{limits:?}");
        assert_eq!(budget.ask(until, Urgent), Turn::Go, "{limits:?}");
    }
}

#[test]
fn a_later_answer_does_not_open_early() {
    let now = Instant::now();
    let mut budget = Budget::new(250);
    assert_eq!((budget.ask(now, Normal), budget.ask(now, Normal)), (Turn::Go, Turn::Go));
    budget.answered(now, Limits { refused: true, retry_after: Some(seconds(30)), ..Limits::default() });
    budget.answered(now, Limits { refused: true, retry_after: Some(seconds(3)), ..Limits::default() });
    assert_eq!(budget.ask(now, Normal), Turn::Wait(now + seconds(30)));
}
