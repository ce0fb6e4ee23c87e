//! The journal's guarantees under lost responses and crashes.

use proptest::prelude::*;

use super::*;

/// A server that stores leases and sometimes loses its response.
#[derive(Default)]
struct Server {
    leases: BTreeMap<String, Vec<Intent>>,
}

#[derive(Debug, Clone)]
enum Move {
    Write(u8),
    Finish(u8),
    Pass(u16),
    /// The oldest request ends: successfully, unknown without effect, unknown with effect, or throttled.
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
    fixture: Fixture,
    server: Server,
    running: VecDeque<Job>,
    /// Requests of a crashed process that take effect late.
    late: Vec<(String, Vec<Intent>)>,
    /// Intents that were acknowledged and are not finished.
    acknowledged: BTreeMap<String, Intent>,
    pending_writes: BTreeMap<WriteId, Intent>,
    clock: i64,
}

impl World {
    fn start(&mut self) {
        while let Some(job) = self.fixture.job() {
            if let Job::Write { intents, .. } = &job {
                assert!(intents.len() <= MAX_INTENTS);
            }
            self.running.push_back(job);
        }
        let writes = self.running.iter().filter(|job| matches!(job, Job::Write { .. })).count();
        assert!(writes <= MAX_CONCURRENT);
        for (write_id, result) in std::mem::take(&mut self.fixture.results) {
            if let (Some(intent), Ok(())) = (self.pending_writes.remove(&write_id), result) {
                self.acknowledged.entry(intent.volume.clone()).or_insert(intent);
            }
        }
        for (volume, intent) in &self.acknowledged {
            let on_server = self
                .server
                .leases
                .values()
                .flatten()
                .any(|kept| kept.volume == *volume && kept.class_uid == intent.class_uid);
            assert!(on_server, "{volume} was acknowledged and is not on the server");
        }
    }

    fn end(&mut self, how: u8) {
        let Some(job) = self.running.pop_front() else { return };
        let unknown = || WriteOutcome::Unknown(ApiError::Unavailable(refusal()));
        match job {
            Job::Load => {
                let all = self
                    .server
                    .leases
                    .iter()
                    .map(|(name, intents)| found(name, intents.clone(), 0))
                    .collect();
                self.fixture.load(if how == 1 { LoadOutcome::Failed } else { LoadOutcome::All(all) });
            }
            Job::Write { name, intents } => {
                let intents: Vec<Intent> =
                    intents.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
                if !matches!(how, 1 | 3) {
                    self.server.leases.insert(name.clone(), intents);
                }
                match how {
                    1 | 2 => self.fixture.written(&name, unknown()),
                    3 => self.fixture.written(&name, WriteOutcome::Throttled(Duration::from_millis(5))),
                    _ => self.fixture.done(&name),
                }
            }
            Job::Remove { name, .. } => {
                let outcome = match how {
                    1 => RemoveOutcome::Failed,
                    2 => {
                        self.server.leases.remove(&name);
                        RemoveOutcome::Failed
                    }
                    _ if self.server.leases.remove(&name).is_some() => RemoveOutcome::Deleted,
                    _ => RemoveOutcome::NotFound,
                };
                self.fixture.planner.removals.ended(&name, outcome, self.fixture.now);
            }
        }
    }

    /// All requests succeed and time passes, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..2000 {
            self.start();
            match self.running.is_empty() {
                false => self.end(0),
                true => match self.fixture.planner.due() {
                    Some(due) => self.fixture.now = self.fixture.now.max(due),
                    None => return,
                },
            }
        }
        panic!("the planner never becomes idle");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever is lost: an acknowledged intent is on the server until it is finished, a restarted process finds it,
    /// and when all intents are finished no lease is left.
    #[test]
    fn acknowledged_intents_survive_and_finished_ones_are_removed(moves in moves()) {
        let mut world = World {
            fixture: Fixture::durable(),
            server: Server::default(),
            running: VecDeque::new(),
            late: Vec::new(),
            acknowledged: BTreeMap::new(),
            pending_writes: BTreeMap::new(),
            clock: 0,
        };
        for step in moves {
            match step {
                Move::Write(number) => {
                    let volume = format!("v{number}");
                    // Like a worker: check for an existing intent first, and write one at a time.
                    let is_pending = world.pending_writes.values().any(|intent| intent.volume == volume);
                    if world.fixture.planner.get(&volume).is_none() && !is_pending {
                        world.clock += 1;
                        let class_uid = world.clock.to_string();
                        let intent = Intent { written: world.clock, class_uid, ..intent(&volume) };
                        let write_id = world.fixture.write_intent(intent.clone());
                        world.pending_writes.insert(write_id, intent);
                    }
                }
                Move::Finish(number) => {
                    let volume = format!("v{number}");
                    if world.fixture.planner.get(&volume).is_some() {
                        world.acknowledged.remove(&volume);
                        world.fixture.planner.finish(&volume, world.fixture.now);
                    }
                }
                Move::Pass(millis) => {
                    world.fixture.pass(Duration::from_millis(millis.into()));
                    world.server.leases.extend(world.late.pop());
                }
                Move::End(how) => world.end(how),
                Move::Lose => {
                    let results = world.fixture.planner.lease_lost();
                    world.fixture.results.extend(results);
                    world.fixture.planner.lease_acquired(world.fixture.now);
                }
                Move::Crash => {
                    // Running requests may still take effect, now or later.
                    for job in std::mem::take(&mut world.running) {
                        let Job::Write { name, intents } = job else { continue };
                        let intents = intents.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
                        world.late.push((name, intents));
                    }
                    world.pending_writes.clear();
                    let (names, write_ids, now) = (world.fixture.names, world.fixture.write_ids, world.fixture.now);
                    world.fixture = Fixture { names, write_ids, now, ..Fixture::new() };
                    world.fixture.planner.lease_acquired(now);
                }
            }
            world.start();
        }
        world.server.leases.extend(world.late.drain(..));
        world.settle();
        for (volume, intent) in world.acknowledged.clone() {
            let open = world.fixture.planner.get(&volume);
            prop_assert_eq!(open.map(|open| open.class_uid.clone()), Some(intent.class_uid));
        }
        for volume in world.fixture.planner.volumes() {
            world.acknowledged.remove(&volume);
            world.fixture.planner.finish(&volume, world.fixture.now);
        }
        world.settle();
        prop_assert!(world.server.leases.is_empty(), "{:?}", world.server.leases.keys());
    }
}
