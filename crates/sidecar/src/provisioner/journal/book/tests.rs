//! The rules as tables; [`world`] has them against a server that loses answers and a sidecar that dies.

use wharf_cluster::Refusal;

use super::*;
use crate::provisioner::journal::removals::Removed;
use crate::provisioner::journal::testing::intent;

/// Long enough for whatever waits.
const LONG: Duration = LONGEST_PAUSE;

fn refusal() -> Refusal {
    Refusal { method: "POST", object: "Lease ns/x".into(), message: "no".into() }
}

fn text(intent: &Intent) -> Arc<str> {
    serde_json::to_string(intent).unwrap().into()
}

/// A book, a clock and names that count up.
struct Desk {
    book: Book,
    now: Instant,
    names: u32,
    tickets: Ticket,
    answers: BTreeMap<Ticket, Result<(), JournalError>>,
}

impl Desk {
    fn new() -> Self {
        let (book, now) = (Book::new(), Instant::now());
        Self { book, now, names: 0, tickets: 0, answers: BTreeMap::new() }
    }

    /// A book that was read and had nothing in it.
    fn durable() -> Self {
        let mut desk = Self::new();
        desk.book.opened(desk.now);
        assert_eq!(desk.job(), Some(Job::Load));
        desk.read(&[]);
        desk
    }

    /// The journal is read, and looked at again until nothing can come late any more.
    fn read(&mut self, found: &[Found]) {
        self.load(Loaded::All(found.to_vec()));
        for _ in LATE {
            self.pass(LATE[2]);
            assert_eq!(self.job(), Some(Job::Load));
            self.load(Loaded::All(found.to_vec()));
        }
    }

    fn job(&mut self) -> Option<Job> {
        let names = &mut self.names;
        self.book.next(self.now, || {
            *names += 1;
            format!("s{names}")
        })
    }

    fn write(&mut self, volume: &str) -> Ticket {
        self.write_intent(intent(volume))
    }

    fn write_intent(&mut self, intent: Intent) -> Ticket {
        self.tickets += 1;
        let text = text(&intent);
        let answer = self.book.write(self.tickets, Arc::new(intent), text, self.now);
        self.answers.extend(answer.map(|answer| (self.tickets, answer)));
        self.tickets
    }

    fn load(&mut self, outcome: Loaded) {
        let answers = self.book.loaded(outcome, self.now);
        self.answers.extend(answers);
    }

    fn written(&mut self, name: &str, outcome: Written) {
        let answers = self.book.written(name, outcome, self.now);
        self.answers.extend(answers);
    }

    fn done(&mut self, name: &str) {
        self.written(name, Written::Done { uid: format!("uid-{name}") });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The size of the write that is next.
    fn next_write(&mut self) -> Option<usize> {
        match self.job() {
            Some(Job::Write { intents, .. }) => Some(intents.len()),
            None => None,
            other => panic!("{other:?}"),
        }
    }
}

fn found(name: &str, intents: Vec<Intent>, unreadable: usize) -> Found {
    Found {
        name: name.into(),
        uid: format!("uid-{name}"),
        intents: intents.into_iter().map(Arc::new).collect(),
        unreadable,
    }
}

#[test]
fn the_first_goes_at_once_and_the_rest_of_a_burst_together() {
    let mut desk = Desk::durable();
    desk.write("a");
    assert_eq!(desk.next_write(), Some(1));
    for volume in ["b", "c", "d"] {
        desk.write(volume);
    }
    assert_eq!(desk.next_write(), None);
    desk.done("s1");
    assert_eq!(desk.next_write(), None, "a burst is gathered");
    assert_eq!(desk.book.due(), Some(desk.now + GATHER));
    desk.pass(GATHER);
    assert_eq!(desk.next_write(), Some(3));
    assert_eq!(desk.answers, BTreeMap::from([(1, Ok(()))]));
    desk.done("s2");
    assert_eq!(desk.answers.len(), 4);
    assert_eq!(desk.book.volumes(), ["a", "b", "c", "d"]);
}

#[test]
fn a_slow_write_does_not_hold_up_others_for_long() {
    let mut desk = Desk::durable();
    desk.write("a");
    assert_eq!(desk.next_write(), Some(1));
    desk.write("b");
    desk.pass(PATIENCE - Duration::from_millis(1));
    assert_eq!(desk.next_write(), None);
    desk.pass(Duration::from_millis(1));
    assert_eq!(desk.next_write(), Some(1));
}

#[test]
fn segments_are_bounded_and_so_are_writes() {
    let mut desk = Desk::durable();
    for i in 0..MOST_INTENTS * (AT_ONCE + 1) {
        desk.write(&format!("v{i}"));
    }
    for _ in 0..AT_ONCE {
        assert_eq!(desk.next_write(), Some(MOST_INTENTS));
    }
    desk.pass(PATIENCE);
    assert_eq!((desk.next_write(), desk.book.due()), (None, None));
    desk.done("s1");
    assert_eq!(desk.next_write(), Some(MOST_INTENTS));

    let mut desk = Desk::durable();
    let large = |volume: &str| Intent { template: "x".repeat(MOST_BYTES / 2).into(), ..intent(volume) };
    for volume in ["a", "b", "c"] {
        desk.write_intent(large(volume));
    }
    assert_eq!(desk.next_write(), Some(1), "two of them are too much for one segment");
}

#[test]
fn what_does_not_fit_is_in_memory_and_holds_up_nobody() {
    let large = |volume: &str| Intent { template: "x".repeat(MOST_BYTES).into(), ..intent(volume) };
    let mut desk = Desk::new();
    desk.book.opened(desk.now);
    let early = desk.write_intent(large("early"));
    assert!(!desk.answers.contains_key(&early), "the journal may have one already");
    let small = desk.write("small");
    assert_eq!(desk.job(), Some(Job::Load));
    desk.read(&[]);
    let late = desk.write_intent(large("late"));
    assert_eq!((&desk.answers[&early], &desk.answers[&late]), (&Ok(()), &Ok(())));
    assert_eq!(desk.next_write(), Some(1));
    desk.done("s1");
    assert_eq!((&desk.answers[&small], desk.book.volumes().len()), (&Ok(()), 3));
    // Nor when the journal is read again.
    desk.book.shut();
    desk.book.opened(desk.now);
    assert_eq!(desk.job(), Some(Job::Load));
    desk.load(Loaded::All(Vec::new()));
    assert_eq!(desk.book.volumes(), ["early", "late"]);
    desk.write("next");
    desk.pass(PATIENCE);
    assert_eq!(desk.next_write(), Some(1));
    desk.book.finish("early", desk.now);
    assert_eq!(desk.book.volumes(), ["late"]);
}

#[test]
fn a_segment_goes_when_its_last_intent_is_finished() {
    let mut desk = Desk::durable();
    desk.write("a");
    desk.write("b");
    assert_eq!(desk.next_write(), Some(2));
    desk.done("s1");
    desk.book.finish("a", desk.now);
    desk.pass(LONG);
    assert_eq!(desk.job(), None);
    assert!(desk.book.get("a").is_none() && desk.book.get("b").is_some());
    desk.book.finish("b", desk.now);
    desk.book.finish("b", desk.now);
    assert_eq!(desk.job(), None, "not at once");
    desk.book.removals.hurry(desk.now);
    assert_eq!(desk.job(), Some(Job::Remove { name: "s1".into(), uid: Some("uid-s1".into()) }));
    desk.book.removals.ended("s1", Removed::Gone, desk.now);
    assert_eq!((desk.job(), desk.book.due(), desk.book.sizes()), (None, None, (0, 0)));
}

#[test]
fn the_same_intent_is_not_written_twice_and_another_is_refused() {
    let mut desk = Desk::durable();
    desk.write("a");
    desk.job();
    desk.done("s1");
    let same = desk.write_intent(Intent { written: 9, ..intent("a") });
    let other = desk.write_intent(Intent { class_uid: "other".into(), ..intent("a") });
    assert_eq!(desk.answers[&same], Ok(()));
    assert_eq!(desk.answers[&other], Err(JournalError::Exists { volume: "a".into() }));
}

#[test]
fn a_lost_answer_is_tried_under_another_name_and_the_old_one_is_looked_for() {
    let mut desk = Desk::durable();
    let ticket = desk.write("a");
    desk.job();
    desk.written("s1", Written::Doubtful(ApiError::Unavailable(refusal())));
    assert_eq!(desk.job(), None);
    assert!(desk.book.get("a").is_none() && desk.answers.is_empty());
    desk.pass(PAUSE);
    assert_eq!(desk.next_write(), Some(1));
    desk.done("s2");
    assert_eq!(desk.answers[&ticket], Ok(()));
    let look = Some(Job::Remove { name: "s1".into(), uid: None });
    desk.pass(LONGEST_PAUSE);
    assert_eq!(desk.job(), look);
    // It may still come.
    desk.book.removals.ended("s1", Removed::NotThere, desk.now);
    assert_eq!(desk.job(), None);
    desk.pass(LONG * 10);
    assert_eq!(desk.job(), look);
    desk.book.removals.ended("s1", Removed::NotThere, desk.now);
    assert_eq!((desk.job(), desk.book.due()), (None, None));
    assert!(desk.book.get("a").is_some());
}

#[test]
fn after_some_lost_answers_whoever_waits_is_told() {
    let mut desk = Desk::durable();
    let ticket = desk.write("a");
    let error = ApiError::Unavailable(refusal());
    for name in ["s1", "s2", "s3"] {
        assert!(!desk.answers.contains_key(&ticket));
        assert_eq!(desk.next_write(), Some(1));
        desk.written(name, Written::Doubtful(error.clone()));
        desk.pass(PAUSE * 4);
    }
    assert_eq!(desk.answers[&ticket], Err(JournalError::Api(error)));
    // What a lost request left behind was never acted on.
    desk.pass(LATE[2]);
    desk.load(Loaded::All(vec![found("s2", vec![intent("a")], 0)]));
    assert!(desk.book.volumes().is_empty());
}

/// From the moment the lease is lost another replica may read the journal, and begin what it finds there: a segment
/// that is deleted after that would take its intent from it.
#[test]
fn nothing_is_deleted_after_a_lost_lease() {
    let doubtful = || Written::Doubtful(ApiError::Unavailable(refusal()));
    let mut desk = Desk::durable();
    desk.write("finished");
    assert_eq!(desk.next_write(), Some(1));
    desk.done("s1");
    desk.book.finish("finished", desk.now);
    desk.write("lost");
    desk.pass(GATHER);
    assert_eq!(desk.next_write(), Some(1));
    desk.written("s2", doubtful());
    desk.write("late");
    desk.pass(PATIENCE);
    assert_eq!(desk.next_write(), Some(1));
    desk.book.shut();
    desk.written("s3", doubtful());
    desk.book.removals.hurry(desk.now);
    assert!(desk.book.removals.is_tidy(desk.now));
    desk.pass(LONG * 10);
    assert_eq!(desk.job(), None);

    // And what is still there when the lease is back may have been acted on.
    desk.book.opened(desk.now);
    assert_eq!(desk.job(), Some(Job::Load));
    desk.load(Loaded::All(vec![found("s2", vec![intent("lost")], 0)]));
    assert_eq!((desk.book.take_found(), desk.book.volumes()), (vec!["lost".into()], vec!["lost".into()]));
}

#[test]
fn a_busy_server_is_given_the_time_it_asks_for() {
    let mut desk = Desk::durable();
    let ticket = desk.write("a");
    desk.job();
    desk.written("s1", Written::Busy(Duration::from_secs(7)));
    assert_eq!((desk.job(), desk.book.due()), (None, Some(desk.now + Duration::from_secs(7))));
    desk.pass(Duration::from_secs(7));
    assert_eq!(desk.next_write(), Some(1));
    desk.written("s2", Written::Refused(ApiError::Invalid(refusal())));
    assert_eq!(desk.answers[&ticket], Err(JournalError::Api(ApiError::Invalid(refusal()))));
    assert_eq!((desk.job(), desk.book.due()), (None, None));
}

#[test]
fn without_permission_intents_are_in_memory_until_there_is_one() {
    for late in [false, true] {
        let mut desk = match late {
            // Noticed at the list, or at the create.
            false => {
                let mut desk = Desk::new();
                desk.book.opened(desk.now);
                desk.job();
                desk.load(Loaded::NotAllowed(ApiError::Forbidden(refusal())));
                desk.write("a");
                desk.write("b");
                desk
            }
            true => {
                let mut desk = Desk::durable();
                desk.write("a");
                desk.job();
                desk.write("b");
                desk.written("s1", Written::NotAllowed(ApiError::Forbidden(refusal())));
                desk
            }
        };
        assert_eq!(desk.answers, BTreeMap::from([(1, Ok(())), (2, Ok(()))]));
        assert!(desk.book.is_ready() && !desk.book.is_durable());
        assert_eq!(desk.book.volumes(), ["a", "b"]);
        assert_eq!((desk.job(), desk.book.due()), (None, Some(desk.now + ASK_AGAIN)));

        desk.pass(ASK_AGAIN);
        assert_eq!(desk.job(), Some(Job::Load));
        desk.load(Loaded::Failed);
        desk.pass(ASK_AGAIN);
        assert_eq!(desk.job(), Some(Job::Load));
        desk.read(&[found("old", vec![intent("c")], 0)]);
        assert_eq!(desk.book.take_found(), ["c"]);
        assert_eq!(desk.next_write(), Some(2));
        // Finished before it was written: it does not come back.
        desk.book.finish("a", desk.now);
        let name = format!("s{}", desk.names);
        desk.done(&name);
        assert_eq!((desk.book.volumes(), desk.book.sizes()), (vec!["b".to_owned(), "c".to_owned()], (2, 2)));
        desk.book.finish("b", desk.now);
        desk.pass(LONG);
        assert_eq!(desk.job(), Some(Job::Remove { uid: Some(format!("uid-{name}")), name }));
    }
}

#[test]
fn what_cannot_be_read_is_never_deleted() {
    let mut desk = Desk::new();
    desk.book.opened(desk.now);
    desk.job();
    let all = vec![found("odd", vec![intent("a")], 1), found("odder", vec![], 2), found("empty", vec![], 0)];
    desk.read(&all);
    desk.book.finish("a", desk.now);
    desk.pass(Duration::from_secs(3600));
    assert_eq!(desk.job(), Some(Job::Remove { name: "empty".into(), uid: Some("uid-empty".into()) }));
    assert_eq!((desk.job(), desk.book.sizes()), (None, (0, 2)));
}

#[test]
fn of_two_for_a_volume_the_newer_counts_and_both_are_deleted() {
    let newer = Intent { written: 7, class_uid: "newer".into(), ..intent("a") };
    for all in [
        vec![found("x", vec![intent("a")], 0), found("y", vec![newer.clone()], 0)],
        vec![found("x", vec![newer.clone()], 0), found("y", vec![intent("a")], 0)],
    ] {
        let mut desk = Desk::new();
        desk.book.opened(desk.now);
        desk.job();
        desk.read(&all);
        assert_eq!(desk.book.get("a").as_deref(), Some(&newer));
        desk.book.finish("a", desk.now);
        desk.pass(LONG);
        let removed: Vec<_> = std::iter::from_fn(|| desk.job()).collect();
        assert_eq!(removed.len(), 2);
    }
}

#[test]
fn a_lost_lease_makes_the_book_unknown_until_it_is_read_again() {
    let mut desk = Desk::durable();
    let [a, b, c] = ["a", "b", "c"].map(|volume| {
        let ticket = desk.write(volume);
        desk.pass(PATIENCE);
        if volume != "c" {
            assert_eq!(desk.next_write(), Some(1));
        }
        ticket
    });
    desk.done("s1");
    let answers = desk.book.shut();
    desk.answers.extend(answers);
    assert_eq!((&desk.answers[&a], &desk.answers[&c]), (&Ok(()), &Err(JournalError::Shut)));
    assert!(desk.book.volumes().is_empty() && !desk.book.is_ready());
    let late = desk.write("d");
    assert_eq!(desk.answers[&late], Err(JournalError::Shut));

    desk.book.opened(desk.now);
    assert_eq!(desk.job(), None, "a write is under way");
    let waits = desk.write_intent(Intent { class_uid: "other".into(), ..intent("b") });
    desk.done("s2");
    assert_eq!(desk.answers[&b], Err(JournalError::Shut));
    assert_eq!(desk.job(), Some(Job::Load));
    desk.load(Loaded::Failed);
    assert_eq!(desk.job(), None);
    desk.pass(PAUSE);
    assert_eq!(desk.job(), Some(Job::Load));
    desk.load(Loaded::All(vec![found("s2", vec![intent("b")], 0)]));
    assert_eq!(desk.answers[&waits], Err(JournalError::Exists { volume: "b".into() }));
    assert_eq!((desk.book.take_found(), desk.book.volumes()), (vec!["b".to_owned()], vec!["b".to_owned()]));
}

#[test]
fn what_comes_late_is_found() {
    let mut desk = Desk::new();
    desk.book.opened(desk.now);
    desk.job();
    desk.load(Loaded::All(Vec::new()));
    desk.write("a");
    assert_eq!(desk.next_write(), Some(1));
    desk.pass(LATE[0]);
    assert_eq!(desk.job(), None, "a write is under way");
    desk.done("s1");
    desk.write("b");
    assert_eq!(desk.job(), Some(Job::Load));
    desk.pass(PATIENCE);
    assert_eq!((desk.job(), desk.book.due()), (None, None), "nothing is written or deleted meanwhile");
    let all = [found("s1", vec![intent("a")], 0), found("late", vec![intent("z")], 0)];
    desk.load(Loaded::All(all.to_vec()));
    assert_eq!(desk.book.take_found(), ["z"]);
    assert_eq!(desk.next_write(), Some(1));
    desk.done("s2");
    // A look that fails changes nothing.
    for outcome in [Loaded::Failed, Loaded::NotAllowed(ApiError::Forbidden(refusal()))] {
        desk.pass(LATE[2]);
        assert_eq!(desk.job(), Some(Job::Load));
        desk.load(outcome);
        assert!(desk.book.is_durable());
    }
    desk.book.finish("z", desk.now);
    desk.pass(LONG);
    assert_eq!(desk.job(), Some(Job::Remove { name: "late".into(), uid: Some("uid-late".into()) }));
    assert_eq!((desk.book.volumes(), desk.book.due()), (vec!["a".to_owned(), "b".to_owned()], None));
}

mod world;
