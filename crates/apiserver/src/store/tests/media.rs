//! Full disks and power failures: acknowledged writes survive, unacknowledged writes are never half visible.

use std::io;
use std::sync::Mutex;

use proptest::prelude::*;
use redb::StorageBackend;

use super::super::dir_lock::DirLock;
use super::super::disk::{self, OpenBackend};
use super::*;

/// A simulated disk: durable content and unsynced operations.
#[derive(Debug, Default)]
struct Platter {
    /// The content as the operating system sees it.
    cached: Vec<u8>,
    /// The content after a power cut, without the unsynced operations.
    durable: Vec<u8>,
    unsynced: Vec<Step>,
    /// Operations until the power fails.
    steps_until_power_loss: Option<usize>,
    /// The size of the disk.
    capacity: Option<u64>,
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, Vec<u8>),
    Resize(usize),
}

fn apply(bytes: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write(at, data) => {
            if bytes.len() < at + data.len() {
                bytes.resize(at + data.len(), 0);
            }
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        Step::Resize(len) => bytes.resize(*len, 0),
    }
}

impl Platter {
    fn step(&mut self, step: Option<Step>) -> io::Result<()> {
        if let Some(left) = &mut self.steps_until_power_loss {
            *left = left.checked_sub(1).ok_or_else(|| io::Error::other("power failure"))?;
        }
        let end = match &step {
            Some(Step::Write(at, data)) => at + data.len(),
            Some(Step::Resize(_)) | None => 0, // Holes take no space.
        };
        if self.capacity.is_some_and(|capacity| end as u64 > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match step {
            Some(step) => {
                apply(&mut self.cached, &step);
                self.unsynced.push(step);
            }
            None => {
                for step in std::mem::take(&mut self.unsynced) {
                    apply(&mut self.durable, &step);
                }
            }
        }
        Ok(())
    }

    /// Simulates a power cycle: unsynced operations are lost, applied, or torn at a sector.
    fn power_cycle(&mut self, mut random: impl FnMut() -> u8) {
        for step in std::mem::take(&mut self.unsynced) {
            match (random() % 3, step) {
                (0, _) => {}
                (1, Step::Write(at, data)) => {
                    let sectors = usize::from(random()) % (data.len() / 512 + 1);
                    apply(&mut self.durable, &Step::Write(at, data[..sectors * 512].to_vec()));
                }
                (_, step) => apply(&mut self.durable, &step),
            }
        }
        self.cached = self.durable.clone();
        self.steps_until_power_loss = None;
    }
}

#[derive(Debug, Clone)]
struct Drive(Arc<Mutex<Platter>>);

impl Drive {
    fn with<T>(&self, what: impl FnOnce(&mut Platter) -> T) -> T {
        what(&mut self.0.lock().unwrap())
    }

    /// Creates a disk with an empty store.
    fn new() -> Self {
        let (store, dir) = super::open(NO_SYNC);
        drop(store);
        let bytes = std::fs::read(disk::database_path(dir.path())).unwrap();
        Self(Arc::new(Mutex::new(Platter { cached: bytes.clone(), durable: bytes, ..Platter::default() })))
    }

    fn open(&self) -> Result<Store, OpenError> {
        let drive = self.clone();
        let backend: OpenBackend = Box::new(move || Ok(Box::new(drive.clone())));
        let lock = DirLock::from_file(tempfile::tempfile().unwrap());
        let (disk, state) = Disk::open_on("drive".into(), backend, true, lock)?;
        Ok(Store::start(disk, state, Options { history: 8, ..Options::default() }))
    }
}

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|platter| platter.cached.len()) as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|platter| {
            let at = offset as usize;
            let data = platter.cached.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(data);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|platter| platter.step(Some(Step::Resize(len as usize))))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|platter| platter.step(None))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|platter| platter.step(Some(Step::Write(offset as usize, data.to_vec()))))
    }
}

/// Writes until a write fails. Returns the acknowledged objects and the error.
async fn write_all(store: &Store, round: usize, count: usize) -> (Vec<Entry>, Option<WriteError>) {
    let mut done = store.list("", None, None, 0).unwrap().entries;
    for i in 0..count {
        let key = Key::from(format!("/{}", i % 5));
        let text = format!("{round} {i} {}", "x".repeat(i * 97 % 3000));
        let existing = done.iter().position(|entry| entry.key == key);
        let change = match existing {
            None => Change::Create(body(&text)),
            Some(at) if i % 7 == 0 => Change::Delete(done[at].revision, body(&text)),
            Some(at) => Change::Update(done[at].revision, body(&text)),
        };
        let deleted = matches!(change, Change::Delete(..));
        match store.write(key, change).await {
            Ok(entry) => {
                done.retain(|other| other.key != entry.key);
                if !deleted {
                    done.push(entry);
                }
            }
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

async fn write_through_power_cuts(power_cuts: Vec<usize>, random: Vec<u8>) {
    let drive = Drive::new();
    let mut random = random.into_iter().cycle();
    for (round, power_cut) in power_cuts.into_iter().enumerate() {
        drive.with(|platter| platter.steps_until_power_loss = Some(power_cut));
        let mut acknowledged = None;
        if let Ok(store) = drive.open() {
            let (done, error) = write_all(&store, round, 40).await;
            let revision = store.revision();
            assert!(
                error.is_none() || matches!(error, Some(WriteError::Failed(Failure::Disk(_)))),
                "{error:?}"
            );
            assert_eq!(
                store.list("", None, None, 0).unwrap().entries,
                sorted(done.clone()),
                "failed writes are not visible"
            );
            acknowledged = Some((sorted(done), revision));
        }
        drive.with(|platter| platter.power_cycle(|| random.next().unwrap()));
        let store = drive.open().unwrap();
        if let Some((done, revision)) = acknowledged {
            // The failed write may have been committed; if so, it is complete.
            assert!((revision..=revision + 1).contains(&store.revision()), "{revision} {}", store.revision());
            assert_eq!(store.list("", Some(revision), None, 0).unwrap().entries, done);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn power_cut_loses_no_acknowledged_write(
        power_cuts in prop::collection::vec(0..600_usize, 1..6),
        random in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(write_through_power_cuts(power_cuts, random));
    }
}

#[tokio::test]
async fn full_disk_fails_only_the_write() {
    let drive = Drive::new();
    let store = drive.open().unwrap();
    create(&store, "/x", "there").await;
    let mut watch = store.watch("", 2).unwrap();
    drive.with(|platter| platter.capacity = Some(platter.cached.len() as u64 / 8));
    let big = "x".repeat(4 << 20);
    let full = store.write("/big".into(), Change::Create(body(&big))).await;
    let Err(WriteError::Failed(Failure::Disk(reason))) = &full else { panic!("{full:?}") };
    assert!(reason.contains("no storage space"), "{reason}");
    assert_eq!((store.revision(), store.get("/big")), (2, None));

    // A small write may still fit. When there is space again, writes succeed.
    let small = store.write("/small".into(), Change::Create(body("small"))).await;
    assert!(matches!(small, Ok(_) | Err(WriteError::Failed(Failure::Disk(_)))), "{small:?}");
    drive.with(|platter| platter.capacity = None);
    let entry = create(&store, "/big", &big).await;
    assert_eq!(store.get("/big"), Some(entry.clone()));
    let mut seen = Vec::new();
    while seen.last() != Some(&entry.revision) {
        seen.push(event(&mut watch).await.revision);
    }
    assert_eq!(
        seen,
        (3..=entry.revision).collect::<Vec<_>>(),
        "the watcher received all committed writes and no failed one"
    );
    let existing = store.list("", None, None, 0).unwrap();
    drop(store);
    assert_eq!(drive.open().unwrap().list("", None, None, 0).unwrap(), existing);
}

#[tokio::test]
async fn lost_disk_closes_the_store() {
    let drive = Drive::new();
    let store = drive.open().unwrap();
    let existing = create(&store, "/x", "there").await;
    let mut watch = store.watch("", 2).unwrap();
    drive.with(|platter| platter.steps_until_power_loss = Some(0));
    let failed = store.write("/y".into(), Change::Create(body("y"))).await;
    assert!(matches!(failed, Err(WriteError::Failed(Failure::Disk(_)))), "{failed:?}");
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    let closed = store.write("/y".into(), Change::Create(body("y"))).await;
    assert_eq!(closed, Err(WriteError::Failed(Failure::Closed)));
    assert_eq!(
        store.list("", None, None, 0).unwrap().entries,
        [existing],
        "the in-memory state can still be read"
    );
}
