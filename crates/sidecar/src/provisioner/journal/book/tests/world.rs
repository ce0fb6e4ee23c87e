//! The journal's promises, whatever the server loses and whenever the sidecar dies.

use proptest::prelude::*;

use super::*;

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
    /// Requests of one who died, that come late.
    late: Vec<(String, Vec<Intent>)>,
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
                self.desk.book.removals.ended(&name, outcome, self.desk.now);
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
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever is lost on the way: what was promised is on the server until it is finished, whoever starts anew
    /// finds it, and when all is finished nothing is left.
    #[test]
    fn promises_hold(moves in moves()) {
        let mut world = World {
            desk: Desk::durable(),
            server: Server::default(),
            running: VecDeque::new(),
            late: Vec::new(),
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
                Move::Pass(millis) => {
                    world.desk.pass(Duration::from_millis(millis.into()));
                    world.server.leases.extend(world.late.pop());
                }
                Move::End(how) => world.end(how),
                Move::Lose => {
                    let answers = world.desk.book.shut();
                    world.desk.answers.extend(answers);
                    world.desk.book.opened(world.desk.now);
                }
                Move::Crash => {
                    // Requests under way may still happen, now or later.
                    for job in std::mem::take(&mut world.running) {
                        let Job::Write { name, intents } = job else { continue };
                        let intents = intents.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
                        world.late.push((name, intents));
                    }
                    world.asked.clear();
                    let (names, tickets, now) = (world.desk.names, world.desk.tickets, world.desk.now);
                    world.desk = Desk { names, tickets, now, ..Desk::new() };
                    world.desk.book.opened(now);
                }
            }
            world.start();
        }
        world.server.leases.extend(world.late.drain(..));
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
