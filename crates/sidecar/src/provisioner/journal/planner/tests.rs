//! The rules, case by case. [`world`] tests them against a server that loses responses and a sidecar that crashes.

use wharf_cluster::Refusal;

use super::*;
use crate::provisioner::journal::removals::RemoveOutcome;
use crate::provisioner::journal::testing::intent;

/// Longer than any pause.
const LONG: Duration = MAX_PAUSE;

fn refusal() -> Refusal {
    Refusal { method: "POST", object: "Lease ns/x".into(), message: "no".into() }
}

fn text(intent: &Intent) -> Arc<str> {
    serde_json::to_string(intent).unwrap().into()
}

/// A planner, a clock and a counter for names.
struct Fixture {
    planner: Planner,
    now: Instant,
    names: u32,
    write_ids: WriteId,
    results: BTreeMap<WriteId, Result<(), JournalError>>,
}

impl Fixture {
    fn new() -> Self {
        let (planner, now) = (Planner::new(), Instant::now());
        Self { planner, now, names: 0, write_ids: 0, results: BTreeMap::new() }
    }

    /// A planner that read an empty journal.
    fn durable() -> Self {
        let mut fixture = Self::new();
        fixture.planner.lease_acquired(fixture.now);
        assert_eq!(fixture.job(), Some(Job::Load));
        fixture.read(&[]);
        fixture
    }

    /// Reads the journal, and reads it again until no late request can take effect any more.
    fn read(&mut self, found: &[FoundSegment]) {
        self.load(LoadOutcome::All(found.to_vec()));
        for _ in REREAD_AFTER {
            self.pass(REREAD_AFTER[2]);
            assert_eq!(self.job(), Some(Job::Load));
            self.load(LoadOutcome::All(found.to_vec()));
        }
    }

    fn job(&mut self) -> Option<Job> {
        let names = &mut self.names;
        self.planner.next(self.now, || {
            *names += 1;
            format!("s{names}")
        })
    }

    fn write(&mut self, volume: &str) -> WriteId {
        self.write_intent(intent(volume))
    }

    fn write_intent(&mut self, intent: Intent) -> WriteId {
        self.write_ids += 1;
        let text = text(&intent);
        let result = self.planner.write(self.write_ids, Arc::new(intent), text, self.now);
        self.results.extend(result.map(|result| (self.write_ids, result)));
        self.write_ids
    }

    fn load(&mut self, outcome: LoadOutcome) {
        let results = self.planner.loaded(outcome, self.now);
        self.results.extend(results);
    }

    fn written(&mut self, name: &str, outcome: WriteOutcome) {
        let results = self.planner.written(name, outcome, self.now);
        self.results.extend(results);
    }

    fn done(&mut self, name: &str) {
        self.written(name, WriteOutcome::Done { uid: format!("uid-{name}") });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The number of intents in the next write.
    fn next_write(&mut self) -> Option<usize> {
        match self.job() {
            Some(Job::Write { intents, .. }) => Some(intents.len()),
            None => None,
            other => panic!("{other:?}"),
        }
    }
}

fn found(name: &str, intents: Vec<Intent>, unreadable: usize) -> FoundSegment {
    FoundSegment {
        name: name.into(),
        uid: format!("uid-{name}"),
        intents: intents.into_iter().map(Arc::new).collect(),
        unreadable,
    }
}

#[test]
fn first_intent_is_written_at_once_and_burst_is_batched() {
    let mut fixture = Fixture::durable();
    fixture.write("a");
    assert_eq!(fixture.next_write(), Some(1));
    for volume in ["b", "c", "d"] {
        fixture.write(volume);
    }
    assert_eq!(fixture.next_write(), None);
    fixture.done("s1");
    assert_eq!(fixture.next_write(), None, "the burst is collected first");
    assert_eq!(fixture.planner.due(), Some(fixture.now + BATCH_WINDOW));
    fixture.pass(BATCH_WINDOW);
    assert_eq!(fixture.next_write(), Some(3));
    assert_eq!(fixture.results, BTreeMap::from([(1, Ok(()))]));
    fixture.done("s2");
    assert_eq!(fixture.results.len(), 4);
    assert_eq!(fixture.planner.volumes(), ["a", "b", "c", "d"]);
}

#[test]
fn slow_write_delays_others_for_max_wait() {
    let mut fixture = Fixture::durable();
    fixture.write("a");
    assert_eq!(fixture.next_write(), Some(1));
    fixture.write("b");
    fixture.pass(MAX_WAIT - Duration::from_millis(1));
    assert_eq!(fixture.next_write(), None);
    fixture.pass(Duration::from_millis(1));
    assert_eq!(fixture.next_write(), Some(1));
}

#[test]
fn segment_size_and_concurrent_writes_are_bounded() {
    let mut fixture = Fixture::durable();
    for i in 0..MAX_INTENTS * (MAX_CONCURRENT + 1) {
        fixture.write(&format!("v{i}"));
    }
    for _ in 0..MAX_CONCURRENT {
        assert_eq!(fixture.next_write(), Some(MAX_INTENTS));
    }
    fixture.pass(MAX_WAIT);
    assert_eq!((fixture.next_write(), fixture.planner.due()), (None, None));
    fixture.done("s1");
    assert_eq!(fixture.next_write(), Some(MAX_INTENTS));

    let mut fixture = Fixture::durable();
    let large = |volume: &str| Intent { template: "x".repeat(MAX_BYTES / 2).into(), ..intent(volume) };
    for volume in ["a", "b", "c"] {
        fixture.write_intent(large(volume));
    }
    assert_eq!(fixture.next_write(), Some(1), "two of them exceed the size of a segment");
}

#[test]
fn oversized_intent_is_held_in_memory() {
    let large = |volume: &str| Intent { template: "x".repeat(MAX_BYTES).into(), ..intent(volume) };
    let mut fixture = Fixture::new();
    fixture.planner.lease_acquired(fixture.now);
    let early = fixture.write_intent(large("early"));
    assert!(!fixture.results.contains_key(&early), "the journal may already have one");
    let small = fixture.write("small");
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.read(&[]);
    let late = fixture.write_intent(large("late"));
    assert_eq!((&fixture.results[&early], &fixture.results[&late]), (&Ok(()), &Ok(())));
    assert_eq!(fixture.next_write(), Some(1));
    fixture.done("s1");
    assert_eq!((&fixture.results[&small], fixture.planner.volumes().len()), (&Ok(()), 3));
    // Also after the journal is read again.
    fixture.planner.lease_lost();
    fixture.planner.lease_acquired(fixture.now);
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.load(LoadOutcome::All(Vec::new()));
    assert_eq!(fixture.planner.volumes(), ["early", "late"]);
    fixture.write("next");
    fixture.pass(MAX_WAIT);
    assert_eq!(fixture.next_write(), Some(1));
    fixture.planner.finish("early", fixture.now);
    assert_eq!(fixture.planner.volumes(), ["late"]);
}

#[test]
fn segment_is_deleted_after_last_intent_is_finished() {
    let mut fixture = Fixture::durable();
    fixture.write("a");
    fixture.write("b");
    assert_eq!(fixture.next_write(), Some(2));
    fixture.done("s1");
    fixture.planner.finish("a", fixture.now);
    fixture.pass(LONG);
    assert_eq!(fixture.job(), None);
    assert!(fixture.planner.get("a").is_none() && fixture.planner.get("b").is_some());
    fixture.planner.finish("b", fixture.now);
    fixture.planner.finish("b", fixture.now);
    assert_eq!(fixture.job(), None, "not at once");
    fixture.planner.removals.expedite(fixture.now);
    assert_eq!(fixture.job(), Some(Job::Remove { name: "s1".into(), uid: Some("uid-s1".into()) }));
    fixture.planner.removals.ended("s1", RemoveOutcome::Deleted, fixture.now);
    assert_eq!((fixture.job(), fixture.planner.due(), fixture.planner.sizes()), (None, None, (0, 0)));
}

#[test]
fn same_intent_is_written_once_and_different_one_is_rejected() {
    let mut fixture = Fixture::durable();
    fixture.write("a");
    fixture.job();
    fixture.done("s1");
    let same = fixture.write_intent(Intent { written: 9, ..intent("a") });
    let other = fixture.write_intent(Intent { class_uid: "other".into(), ..intent("a") });
    assert_eq!(fixture.results[&same], Ok(()));
    assert_eq!(fixture.results[&other], Err(JournalError::Exists { volume: "a".into() }));
}

#[test]
fn write_without_response_is_retried_under_new_name_and_old_one_removed() {
    let mut fixture = Fixture::durable();
    let write_id = fixture.write("a");
    fixture.job();
    fixture.written("s1", WriteOutcome::Unknown(ApiError::Unavailable(refusal())));
    assert_eq!(fixture.job(), None);
    assert!(fixture.planner.get("a").is_none() && fixture.results.is_empty());
    fixture.pass(BASE_PAUSE);
    assert_eq!(fixture.next_write(), Some(1));
    fixture.done("s2");
    assert_eq!(fixture.results[&write_id], Ok(()));
    let look = Some(Job::Remove { name: "s1".into(), uid: None });
    fixture.pass(MAX_PAUSE);
    assert_eq!(fixture.job(), look);
    // The write may still take effect.
    fixture.planner.removals.ended("s1", RemoveOutcome::NotFound, fixture.now);
    assert_eq!(fixture.job(), None);
    fixture.pass(LONG * 10);
    assert_eq!(fixture.job(), look);
    fixture.planner.removals.ended("s1", RemoveOutcome::NotFound, fixture.now);
    assert_eq!((fixture.job(), fixture.planner.due()), (None, None));
    assert!(fixture.planner.get("a").is_some());
}

#[test]
fn write_fails_after_max_tries_without_response() {
    let mut fixture = Fixture::durable();
    let write_id = fixture.write("a");
    let error = ApiError::Unavailable(refusal());
    for name in ["s1", "s2", "s3"] {
        assert!(!fixture.results.contains_key(&write_id));
        assert_eq!(fixture.next_write(), Some(1));
        fixture.written(name, WriteOutcome::Unknown(error.clone()));
        fixture.pass(BASE_PAUSE * 4);
    }
    assert_eq!(fixture.results[&write_id], Err(JournalError::Api(error)));
    // Intents of an unacknowledged write were never acted on.
    fixture.pass(REREAD_AFTER[2]);
    fixture.load(LoadOutcome::All(vec![found("s2", vec![intent("a")], 0)]));
    assert!(fixture.planner.volumes().is_empty());
}

/// Once the lease is lost, another replica may read the journal and act on it: deleting a segment after that would
/// remove its intent.
#[test]
fn lost_lease_stops_deletions() {
    let doubtful = || WriteOutcome::Unknown(ApiError::Unavailable(refusal()));
    let mut fixture = Fixture::durable();
    fixture.write("finished");
    assert_eq!(fixture.next_write(), Some(1));
    fixture.done("s1");
    fixture.planner.finish("finished", fixture.now);
    fixture.write("lost");
    fixture.pass(BATCH_WINDOW);
    assert_eq!(fixture.next_write(), Some(1));
    fixture.written("s2", doubtful());
    fixture.write("late");
    fixture.pass(MAX_WAIT);
    assert_eq!(fixture.next_write(), Some(1));
    fixture.planner.lease_lost();
    fixture.written("s3", doubtful());
    fixture.planner.removals.expedite(fixture.now);
    assert!(fixture.planner.removals.is_idle(fixture.now));
    fixture.pass(LONG * 10);
    assert_eq!(fixture.job(), None);

    // When the lease is acquired again, remaining intents may have been acted on.
    fixture.planner.lease_acquired(fixture.now);
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.load(LoadOutcome::All(vec![found("s2", vec![intent("lost")], 0)]));
    assert_eq!(
        (fixture.planner.take_found(), fixture.planner.volumes()),
        (vec!["lost".into()], vec!["lost".into()])
    );
}

#[test]
fn throttled_write_waits_for_retry_after() {
    let mut fixture = Fixture::durable();
    let write_id = fixture.write("a");
    fixture.job();
    fixture.written("s1", WriteOutcome::Throttled(Duration::from_secs(7)));
    assert_eq!((fixture.job(), fixture.planner.due()), (None, Some(fixture.now + Duration::from_secs(7))));
    fixture.pass(Duration::from_secs(7));
    assert_eq!(fixture.next_write(), Some(1));
    fixture.written("s2", WriteOutcome::Rejected(ApiError::Invalid(refusal())));
    assert_eq!(fixture.results[&write_id], Err(JournalError::Api(ApiError::Invalid(refusal()))));
    assert_eq!((fixture.job(), fixture.planner.due()), (None, None));
}

#[test]
fn forbidden_journal_holds_intents_in_memory_until_permitted() {
    for late in [false, true] {
        let mut fixture = match late {
            // Forbidden at the list, or at the create.
            false => {
                let mut fixture = Fixture::new();
                fixture.planner.lease_acquired(fixture.now);
                fixture.job();
                fixture.load(LoadOutcome::Forbidden(ApiError::Forbidden(refusal())));
                fixture.write("a");
                fixture.write("b");
                fixture
            }
            true => {
                let mut fixture = Fixture::durable();
                fixture.write("a");
                fixture.job();
                fixture.write("b");
                fixture.written("s1", WriteOutcome::Forbidden(ApiError::Forbidden(refusal())));
                fixture
            }
        };
        assert_eq!(fixture.results, BTreeMap::from([(1, Ok(())), (2, Ok(()))]));
        assert!(fixture.planner.is_ready() && !fixture.planner.is_durable());
        assert_eq!(fixture.planner.volumes(), ["a", "b"]);
        assert_eq!((fixture.job(), fixture.planner.due()), (None, Some(fixture.now + RETRY_ACCESS)));

        fixture.pass(RETRY_ACCESS);
        assert_eq!(fixture.job(), Some(Job::Load));
        fixture.load(LoadOutcome::Failed);
        fixture.pass(RETRY_ACCESS);
        assert_eq!(fixture.job(), Some(Job::Load));
        fixture.read(&[found("old", vec![intent("c")], 0)]);
        assert_eq!(fixture.planner.take_found(), ["c"]);
        assert_eq!(fixture.next_write(), Some(2));
        // Finished before it was written: it does not reappear.
        fixture.planner.finish("a", fixture.now);
        let name = format!("s{}", fixture.names);
        fixture.done(&name);
        assert_eq!(
            (fixture.planner.volumes(), fixture.planner.sizes()),
            (vec!["b".to_owned(), "c".to_owned()], (2, 2))
        );
        fixture.planner.finish("b", fixture.now);
        fixture.pass(LONG);
        assert_eq!(fixture.job(), Some(Job::Remove { uid: Some(format!("uid-{name}")), name }));
    }
}

#[test]
fn segment_with_undecodable_intents_is_never_deleted() {
    let mut fixture = Fixture::new();
    fixture.planner.lease_acquired(fixture.now);
    fixture.job();
    let all = vec![found("odd", vec![intent("a")], 1), found("odder", vec![], 2), found("empty", vec![], 0)];
    fixture.read(&all);
    fixture.planner.finish("a", fixture.now);
    fixture.pass(Duration::from_secs(3600));
    assert_eq!(fixture.job(), Some(Job::Remove { name: "empty".into(), uid: Some("uid-empty".into()) }));
    assert_eq!((fixture.job(), fixture.planner.sizes()), (None, (0, 2)));
}

#[test]
fn newer_of_two_intents_counts_and_both_segments_are_deleted() {
    let newer = Intent { written: 7, class_uid: "newer".into(), ..intent("a") };
    for all in [
        vec![found("x", vec![intent("a")], 0), found("y", vec![newer.clone()], 0)],
        vec![found("x", vec![newer.clone()], 0), found("y", vec![intent("a")], 0)],
    ] {
        let mut fixture = Fixture::new();
        fixture.planner.lease_acquired(fixture.now);
        fixture.job();
        fixture.read(&all);
        assert_eq!(fixture.planner.get("a").as_deref(), Some(&newer));
        fixture.planner.finish("a", fixture.now);
        fixture.pass(LONG);
        let removed: Vec<_> = std::iter::from_fn(|| fixture.job()).collect();
        assert_eq!(removed.len(), 2);
    }
}

#[test]
fn lost_lease_voids_state_until_journal_is_read() {
    let mut fixture = Fixture::durable();
    let [a, b, c] = ["a", "b", "c"].map(|volume| {
        let write_id = fixture.write(volume);
        fixture.pass(MAX_WAIT);
        if volume != "c" {
            assert_eq!(fixture.next_write(), Some(1));
        }
        write_id
    });
    fixture.done("s1");
    let results = fixture.planner.lease_lost();
    fixture.results.extend(results);
    assert_eq!((&fixture.results[&a], &fixture.results[&c]), (&Ok(()), &Err(JournalError::Closed)));
    assert!(fixture.planner.volumes().is_empty() && !fixture.planner.is_ready());
    let late = fixture.write("d");
    assert_eq!(fixture.results[&late], Err(JournalError::Closed));

    fixture.planner.lease_acquired(fixture.now);
    assert_eq!(fixture.job(), None, "a write is running");
    let waits = fixture.write_intent(Intent { class_uid: "other".into(), ..intent("b") });
    fixture.done("s2");
    assert_eq!(fixture.results[&b], Err(JournalError::Closed));
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.load(LoadOutcome::Failed);
    assert_eq!(fixture.job(), None);
    fixture.pass(BASE_PAUSE);
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.load(LoadOutcome::All(vec![found("s2", vec![intent("b")], 0)]));
    assert_eq!(fixture.results[&waits], Err(JournalError::Exists { volume: "b".into() }));
    assert_eq!(
        (fixture.planner.take_found(), fixture.planner.volumes()),
        (vec!["b".to_owned()], vec!["b".to_owned()])
    );
}

#[test]
fn late_segment_is_found_by_reread() {
    let mut fixture = Fixture::new();
    fixture.planner.lease_acquired(fixture.now);
    fixture.job();
    fixture.load(LoadOutcome::All(Vec::new()));
    fixture.write("a");
    assert_eq!(fixture.next_write(), Some(1));
    fixture.pass(REREAD_AFTER[0]);
    assert_eq!(fixture.job(), None, "a write is running");
    fixture.done("s1");
    fixture.write("b");
    assert_eq!(fixture.job(), Some(Job::Load));
    fixture.pass(MAX_WAIT);
    assert_eq!(
        (fixture.job(), fixture.planner.due()),
        (None, None),
        "nothing is written or deleted during a read"
    );
    let all = [found("s1", vec![intent("a")], 0), found("late", vec![intent("z")], 0)];
    fixture.load(LoadOutcome::All(all.to_vec()));
    assert_eq!(fixture.planner.take_found(), ["z"]);
    assert_eq!(fixture.next_write(), Some(1));
    fixture.done("s2");
    // A failed read changes nothing.
    for outcome in [LoadOutcome::Failed, LoadOutcome::Forbidden(ApiError::Forbidden(refusal()))] {
        fixture.pass(REREAD_AFTER[2]);
        assert_eq!(fixture.job(), Some(Job::Load));
        fixture.load(outcome);
        assert!(fixture.planner.is_durable());
    }
    fixture.planner.finish("z", fixture.now);
    fixture.pass(LONG);
    assert_eq!(fixture.job(), Some(Job::Remove { name: "late".into(), uid: Some("uid-late".into()) }));
    assert_eq!(
        (fixture.planner.volumes(), fixture.planner.due()),
        (vec!["a".to_owned(), "b".to_owned()], None)
    );
}

mod world;
