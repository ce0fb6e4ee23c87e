//! The rules as tables, and then against a server that loses answers and a sidecar that dies.

use proptest::prelude::*;
use wharf_cluster::Refusal;

use super::*;
use crate::provisioner::journal::testing::intent;

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
        desk.load(Loaded::All(Vec::new()));
        desk
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
fn what_does_not_fit_is_refused() {
    let mut desk = Desk::durable();
    let ticket = desk.write_intent(Intent { template: "x".repeat(MOST_BYTES).into(), ..intent("a") });
    let Err(JournalError::TooLarge { volume, bytes }) = &desk.answers[&ticket] else { panic!() };
    assert!(volume == "a" && *bytes > MOST_BYTES);
}

#[test]
fn a_segment_goes_when_its_last_intent_is_finished() {
    let mut desk = Desk::durable();
    desk.write("a");
    desk.write("b");
    assert_eq!(desk.next_write(), Some(2));
    desk.done("s1");
    desk.book.finish("a", desk.now);
    desk.pass(TIDY);
    assert_eq!(desk.job(), None);
    assert!(desk.book.get("a").is_none() && desk.book.get("b").is_some());
    desk.book.finish("b", desk.now);
    desk.book.finish("b", desk.now);
    assert!(desk.book.is_tidy(desk.now), "not due yet");
    desk.book.hurry(desk.now);
    assert!(!desk.book.is_tidy(desk.now));
    let remove = Job::Remove { name: "s1".into(), uid: Some("uid-s1".into()) };
    assert_eq!(desk.job(), Some(remove.clone()));
    assert_eq!((desk.job(), desk.book.due()), (None, None));
    desk.book.removed("s1", Removed::Failed, desk.now);
    assert_eq!((desk.job(), desk.book.due()), (None, Some(desk.now + PAUSE)));
    desk.pass(PAUSE);
    assert_eq!(desk.job(), Some(remove));
    desk.book.removed("s1", Removed::NotThere, desk.now);
    assert_eq!((desk.job(), desk.book.due(), desk.book.sizes()), (None, None, (0, 0)));
}

#[test]
fn deletions_are_bounded() {
    let mut desk = Desk::durable();
    desk.book.shut();
    desk.book.opened(desk.now);
    desk.job();
    let all = (0..10).map(|i| found(&format!("f{i}"), vec![intent(&format!("v{i}"))], 0)).collect();
    desk.load(Loaded::All(all));
    for volume in desk.book.volumes() {
        desk.book.finish(&volume, desk.now);
    }
    desk.pass(TIDY);
    let begun = std::iter::from_fn(|| desk.job()).count();
    assert_eq!((begun, desk.book.due()), (AT_ONCE, None));
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
    desk.book.removed("s1", Removed::NotThere, desk.now);
    assert_eq!(desk.job(), None);
    desk.pass(DOUBT);
    assert_eq!(desk.job(), look);
    desk.book.removed("s1", Removed::NotThere, desk.now);
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
    desk.book.shut();
    desk.book.opened(desk.now);
    desk.job();
    desk.load(Loaded::All(vec![found("s2", vec![intent("a")], 0)]));
    assert!(desk.book.volumes().is_empty());
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
        desk.load(Loaded::All(vec![found("old", vec![intent("c")], 0)]));
        assert_eq!(desk.book.take_found(), ["c"]);
        assert_eq!(desk.next_write(), Some(2));
        // Finished before it was written: it does not come back.
        desk.book.finish("a", desk.now);
        let name = format!("s{}", desk.names);
        desk.done(&name);
        assert_eq!((desk.book.volumes(), desk.book.sizes()), (vec!["b".to_owned(), "c".to_owned()], (2, 2)));
        desk.book.finish("b", desk.now);
        desk.pass(TIDY);
        assert_eq!(desk.job(), Some(Job::Remove { uid: Some(format!("uid-{name}")), name }));
    }
}

#[test]
fn what_cannot_be_read_is_never_deleted() {
    let mut desk = Desk::new();
    desk.book.opened(desk.now);
    desk.job();
    let all = vec![found("odd", vec![intent("a")], 1), found("odder", vec![], 2), found("empty", vec![], 0)];
    desk.load(Loaded::All(all));
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
        desk.load(Loaded::All(all));
        assert_eq!(desk.book.get("a").as_deref(), Some(&newer));
        desk.book.finish("a", desk.now);
        desk.pass(TIDY);
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

/// A server that keeps leases, and sometimes does not say what it did.
#[derive(Default)]
struct Server {
    leases: BTreeMap<String, Vec<Intent>>,
}

#[derive(Debug, Clone)]
enum Move {
    Write(u8),
    Finish(u8),
    Pass(u16),
    /// The oldest request ends: well, without effect and unknown, with effect and unknown, busy.
    End(u8),
    Lose,
    Crash,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0u8..12).prop_map(Move::Write),
        5 => (0u8..12).prop_map(Move::Finish),
        4 => (0u16..400).prop_map(Move::Pass),
        8 => (0u8..8).prop_map(Move::End),
        1 => Just(Move::Lose),
        1 => Just(Move::Crash),
    ];
    prop::collection::vec(one, 1..120)
}

struct World {
    desk: Desk,
    server: Server,
    running: VecDeque<Job>,
    /// Who was told that it is written, and has not finished it.
    promised: BTreeMap<String, Intent>,
    asked: BTreeMap<Ticket, Intent>,
    clock: i64,
}

impl World {
    fn start(&mut self) {
        while let Some(job) = self.desk.job() {
            if let Job::Write { intents, .. } = &job {
                assert!(intents.len() <= MOST_INTENTS);
            }
            self.running.push_back(job);
        }
        let writes = self.running.iter().filter(|job| matches!(job, Job::Write { .. })).count();
        assert!(writes <= AT_ONCE);
        for (ticket, answer) in std::mem::take(&mut self.desk.answers) {
            if let (Some(intent), Ok(())) = (self.asked.remove(&ticket), answer) {
                self.promised.entry(intent.volume.clone()).or_insert(intent);
            }
        }
        for (volume, intent) in &self.promised {
            let on_server = self
                .server
                .leases
                .values()
                .flatten()
                .any(|kept| kept.volume == *volume && kept.class_uid == intent.class_uid);
            assert!(on_server, "{volume} was promised and is not on the server");
        }
    }

    fn end(&mut self, how: u8) {
        let Some(job) = self.running.pop_front() else { return };
        let unknown = || Written::Doubtful(ApiError::Unavailable(refusal()));
        match job {
            Job::Load => {
                let all = self
                    .server
                    .leases
                    .iter()
                    .map(|(name, intents)| found(name, intents.clone(), 0))
                    .collect();
                self.desk.load(if how == 1 { Loaded::Failed } else { Loaded::All(all) });
            }
            Job::Write { name, intents } => {
                let intents: Vec<Intent> =
                    intents.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
                if !matches!(how, 1 | 3) {
                    self.server.leases.insert(name.clone(), intents);
                }
                match how {
                    1 | 2 => self.desk.written(&name, unknown()),
                    3 => self.desk.written(&name, Written::Busy(Duration::from_millis(5))),
                    _ => self.desk.done(&name),
                }
            }
            Job::Remove { name, .. } => {
                let outcome = match how {
                    1 => Removed::Failed,
                    2 => {
                        self.server.leases.remove(&name);
                        Removed::Failed
                    }
                    _ if self.server.leases.remove(&name).is_some() => Removed::Gone,
                    _ => Removed::NotThere,
                };
                self.desk.book.removed(&name, outcome, self.desk.now);
            }
        }
    }

    /// All requests end well and time passes, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..2000 {
            self.start();
            match self.running.is_empty() {
                false => self.end(0),
                true => match self.desk.book.due() {
                    Some(due) => self.desk.now = self.desk.now.max(due),
                    None => return,
                },
            }
        }
        panic!("no end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever is lost on the way: what was promised is on the server until it is finished, whoever starts anew
    /// finds it, and when all is finished nothing is left.
    #[test]
    fn promises_hold(moves in moves()) {
        let mut world = World {
            desk: Desk::durable(),
            server: Server::default(),
            running: VecDeque::new(),
            promised: BTreeMap::new(),
            asked: BTreeMap::new(),
            clock: 0,
        };
        for step in moves {
            match step {
                Move::Write(number) => {
                    let volume = format!("v{number}");
                    // As a worker does: what is there is looked at first, and one at a time asks.
                    let asking = world.asked.values().any(|intent| intent.volume == volume);
                    if world.desk.book.get(&volume).is_none() && !asking {
                        world.clock += 1;
                        let class_uid = world.clock.to_string();
                        let intent = Intent { written: world.clock, class_uid, ..intent(&volume) };
                        let ticket = world.desk.write_intent(intent.clone());
                        world.asked.insert(ticket, intent);
                    }
                }
                Move::Finish(number) => {
                    let volume = format!("v{number}");
                    if world.desk.book.get(&volume).is_some() {
                        world.promised.remove(&volume);
                        world.desk.book.finish(&volume, world.desk.now);
                    }
                }
                Move::Pass(millis) => world.desk.pass(Duration::from_millis(millis.into())),
                Move::End(how) => world.end(how),
                Move::Lose => {
                    let answers = world.desk.book.shut();
                    world.desk.answers.extend(answers);
                    world.desk.book.opened(world.desk.now);
                }
                Move::Crash => {
                    // Requests under way may still happen.
                    while let Some(Job::Write { name, intents }) = world.running.pop_front() {
                        let intents = intents.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
                        world.server.leases.insert(name, intents);
                    }
                    world.running.clear();
                    world.asked.clear();
                    let (names, tickets, now) = (world.desk.names, world.desk.tickets, world.desk.now);
                    world.desk = Desk { names, tickets, now, ..Desk::new() };
                    world.desk.book.opened(now);
                }
            }
            world.start();
        }
        world.settle();
        for (volume, intent) in world.promised.clone() {
            let open = world.desk.book.get(&volume);
            prop_assert_eq!(open.map(|open| open.class_uid.clone()), Some(intent.class_uid));
        }
        for volume in world.desk.book.volumes() {
            world.promised.remove(&volume);
            world.desk.book.finish(&volume, world.desk.now);
        }
        world.settle();
        prop_assert!(world.server.leases.is_empty(), "{:?}", world.server.leases.keys());
    }
}
