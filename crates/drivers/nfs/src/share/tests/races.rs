//! Several controllers on one share at the same time.

use std::sync::Barrier;
use std::time::Duration;

use super::support::{Fixture, create, delete, environment, leftovers, purge, recover, volume};
use crate::parameters::OnDelete;
use crate::share::{CreateVolume, ErrorKind, Share};

/// A small generator, so that a seed reproduces what each controller tries.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn open(fixture: &Fixture, grace: Duration) -> Share {
    Share::open(&fixture.root(), environment(grace)).unwrap()
}

fn seeds() -> u64 {
    std::env::var("NFS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(25)
}

#[test]
fn racing_creates_of_one_volume_make_one_directory() {
    for seed in 0..seeds() {
        let fixture = Fixture::new();
        let barrier = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let share = open(&fixture, Duration::from_secs(3600));
                    barrier.wait();
                    create(&share, &volume("h1", "a/pvc-1"))
                        .unwrap_or_else(|error| panic!("{seed}: {error}"));
                });
            }
        });
        assert_eq!(fixture.tree(), ["a", "a/pvc-1"], "{seed}");
        fixture.delete("h1").unwrap();
        assert_eq!(fixture.tree(), Vec::<String>::new(), "{seed}");
        assert_eq!(fixture.leftovers(), Vec::<String>::new(), "{seed}");
    }
}

/// Controllers create, fill and delete volumes in few directories, some shared, some nested in parents that come and go,
/// while one recovers and purges. Only a volume's own deletion may remove its data.
#[test]
fn racing_controllers_lose_nothing_and_leak_nothing() {
    const PATHS: [&str; 6] = ["a/b/c", "a/b/d", "a/e", "a", "shared", "shared"];
    for seed in 1..=seeds() {
        let fixture = Fixture::new();
        fixture.write("foreign/data", "precious");
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for controller in 0..3_u64 {
                let (fixture, barrier) = (&fixture, &barrier);
                scope.spawn(move || {
                    let mut random = Random(seed * 7919 + controller * 104_729 + 1);
                    let share = open(fixture, Duration::from_secs(3600));
                    barrier.wait();
                    for round in 0..6 {
                        let path = PATHS[random.below(PATHS.len() as u64) as usize];
                        let handle = format!("{controller}-{round}");
                        let on_delete = (random.below(4) == 0).then_some(OnDelete::Archive);
                        let request = CreateVolume { on_delete, ..volume(&handle, path) };
                        match create(&share, &request) {
                            Ok(_) => {
                                let file = fixture.at(path).join(&handle);
                                std::fs::write(&file, &handle)
                                    .unwrap_or_else(|error| panic!("{seed} {handle} {path}: {error}"));
                                if random.below(3) == 0 {
                                    std::thread::yield_now();
                                }
                                let read = std::fs::read_to_string(&file);
                                assert_eq!(read.ok().as_deref(), Some(handle.as_str()), "{seed} {path}");
                                delete_until_done(&share, &handle, seed);
                            }
                            // Nested, being created by another, or contended.
                            Err(error) => {
                                assert!(
                                    matches!(
                                        error.kind,
                                        ErrorKind::Invalid
                                            | ErrorKind::InProgress { .. }
                                            | ErrorKind::Unavailable
                                    ),
                                    "{seed} {path}: {error}"
                                );
                                delete_until_done(&share, &handle, seed);
                            }
                        }
                    }
                });
            }
            let (fixture, barrier) = (&fixture, &barrier);
            scope.spawn(move || {
                let share = open(fixture, Duration::from_secs(3600));
                barrier.wait();
                for _ in 0..6 {
                    recover(&share).unwrap_or_else(|error| panic!("{seed}: {error}"));
                    // Another controller may purge the same entry.
                    let _ = purge(&share, 100);
                }
            });
        });
        let left = leftovers(&fixture.share, &fixture.root());
        let tree = fixture.tree();
        let volumes: Vec<_> = left.iter().filter(|path| path.starts_with("volumes")).collect();
        assert!(volumes.is_empty(), "{seed}: {volumes:?}");
        let unexpected: Vec<_> = tree
            .iter()
            .filter(|path| !path.starts_with("archived-") && !path.starts_with("foreign"))
            .collect();
        assert!(unexpected.is_empty(), "{seed}: {unexpected:?}");
        assert_eq!(std::fs::read_to_string(fixture.at("foreign/data")).unwrap(), "precious");
        assert!(
            !left.iter().any(|path| path.starts_with("trash/") || path.starts_with("staging/")),
            "{seed}: {left:?}"
        );
    }
}

fn delete_until_done(share: &Share, handle: &str, seed: u64) {
    for _ in 0..20 {
        match delete(share, handle) {
            Ok(()) => return,
            Err(error) if error.kind == ErrorKind::Unavailable || error.kind == ErrorKind::Internal => {}
            Err(error) => panic!("{seed} {handle}: {error}"),
        }
    }
    panic!("{seed}: {handle} was not deleted");
}
