//! Disks that are full, and power that fails: what was acknowledged is there, what was not is not half there.

use std::io;
use std::sync::Mutex;

use proptest::prelude::*;
use redb::StorageBackend;

use super::super::disk::{self, OpenMedium};
use super::super::guard::Guard;
use super::*;

/// What has reached the platter, and what is on its way.
#[derive(Debug, Default)]
struct Platter {
    /// As the system sees it.
    cached: Vec<u8>,
    /// As it is after a power cut, but for what is on its way.
    durable: Vec<u8>,
    underway: Vec<Step>,
    /// Steps until the power goes.
    power: Option<usize>,
    /// How much room there is.
    room: Option<u64>,
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
        if let Some(left) = &mut self.power {
            *left = left.checked_sub(1).ok_or_else(|| io::Error::other("the power is gone"))?;
        }
        let end = match &step {
            Some(Step::Write(at, data)) => at + data.len(),
            Some(Step::Resize(_)) | None => 0, // Holes take no room.
        };
        if self.room.is_some_and(|room| end as u64 > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match step {
            Some(step) => {
                apply(&mut self.cached, &step);
                self.underway.push(step);
            }
            None => {
                for step in std::mem::take(&mut self.underway) {
                    apply(&mut self.durable, &step);
                }
            }
        }
        Ok(())
    }

    /// The power goes and comes: of what was underway, part is there, some of it torn at a sector.
    fn cycle(&mut self, mut luck: impl FnMut() -> u8) {
        for step in std::mem::take(&mut self.underway) {
            match (luck() % 3, step) {
                (0, _) => {}
                (1, Step::Write(at, data)) => {
                    let sectors = usize::from(luck()) % (data.len() / 512 + 1);
                    apply(&mut self.durable, &Step::Write(at, data[..sectors * 512].to_vec()));
                }
                (_, step) => apply(&mut self.durable, &step),
            }
        }
        self.cached = self.durable.clone();
        self.power = None;
    }
}

#[derive(Debug, Clone)]
struct Drive(Arc<Mutex<Platter>>);

impl Drive {
    fn with<T>(&self, what: impl FnOnce(&mut Platter) -> T) -> T {
        what(&mut self.0.lock().unwrap())
    }

    /// With an empty store on it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path(), QUICK).unwrap());
        let bytes = std::fs::read(disk::file(dir.path())).unwrap();
        Self(Arc::new(Mutex::new(Platter { cached: bytes.clone(), durable: bytes, ..Platter::default() })))
    }

    fn open(&self) -> Result<Store, OpenError> {
        let drive = self.clone();
        let medium: OpenMedium = Box::new(move || Ok(Box::new(drive.clone())));
        let guard = Guard::on(tempfile::tempfile().unwrap());
        let (disk, state) = Disk::open_on("drive".into(), medium, true, guard)?;
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

/// Writes until it fails: what was acknowledged, and what was tried last.
async fn write_all(store: &Store, round: usize, count: usize) -> (Vec<Entry>, Option<WriteError>) {
    let mut done = store.list("", None, None, 0).unwrap().entries;
    for i in 0..count {
        let key = Key::from(format!("/{}", i % 5));
        let text = format!("{round} {i} {}", "x".repeat(i * 97 % 3000));
        let there = done.iter().position(|entry| entry.key == key);
        let change = match there {
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

async fn cut_and_cut_again(cuts: Vec<usize>, luck: Vec<u8>) {
    let drive = Drive::new();
    let mut luck = luck.into_iter().cycle();
    for (round, cut) in cuts.into_iter().enumerate() {
        drive.with(|platter| platter.power = Some(cut));
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
                "none that failed is seen"
            );
            acknowledged = Some((sorted(done), revision));
        }
        drive.with(|platter| platter.cycle(|| luck.next().unwrap()));
        let store = drive.open().unwrap();
        if let Some((done, revision)) = acknowledged {
            // The one that failed may be there, for its commit may have been; if so, whole.
            assert!((revision..=revision + 1).contains(&store.revision()), "{revision} {}", store.revision());
            assert_eq!(store.list("", Some(revision), None, 0).unwrap().entries, done);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_power_cut_takes_nothing_that_was_acknowledged(
        cuts in prop::collection::vec(0..600_usize, 1..6),
        luck in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(cut_and_cut_again(cuts, luck));
    }
}

#[tokio::test]
async fn a_full_disk_fails_the_write_and_nothing_else() {
    let drive = Drive::new();
    let store = drive.open().unwrap();
    create(&store, "/x", "there").await;
    let mut watch = store.watch("", 2).unwrap();
    drive.with(|platter| platter.room = Some(platter.cached.len() as u64 / 8));
    let big = "x".repeat(4 << 20);
    let full = store.write("/big".into(), Change::Create(body(&big))).await;
    let Err(WriteError::Failed(Failure::Disk(why))) = &full else { panic!("{full:?}") };
    assert!(why.contains("no storage space"), "{why}");
    assert_eq!((store.revision(), store.get("/big")), (2, None));

    // A small one may still fit; and when there is room again, all is well.
    let small = store.write("/small".into(), Change::Create(body("small"))).await;
    assert!(matches!(small, Ok(_) | Err(WriteError::Failed(Failure::Disk(_)))), "{small:?}");
    drive.with(|platter| platter.room = None);
    let entry = create(&store, "/big", &big).await;
    assert_eq!(store.get("/big"), Some(entry.clone()));
    let mut seen = Vec::new();
    while seen.last() != Some(&entry.revision) {
        seen.push(event(&mut watch).await.revision);
    }
    assert_eq!(
        seen,
        (3..=entry.revision).collect::<Vec<_>>(),
        "a watcher saw what is, and nothing that failed"
    );
    let there = store.list("", None, None, 0).unwrap();
    drop(store);
    assert_eq!(drive.open().unwrap().list("", None, None, 0).unwrap(), there);
}

#[tokio::test]
async fn a_disk_that_is_gone_closes_the_store() {
    let drive = Drive::new();
    let store = drive.open().unwrap();
    let there = create(&store, "/x", "there").await;
    let mut watch = store.watch("", 2).unwrap();
    drive.with(|platter| platter.power = Some(0));
    let failed = store.write("/y".into(), Change::Create(body("y"))).await;
    assert!(matches!(failed, Err(WriteError::Failed(Failure::Disk(_)))), "{failed:?}");
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    let closed = store.write("/y".into(), Change::Create(body("y"))).await;
    assert_eq!(closed, Err(WriteError::Failed(Failure::Closed)));
    assert_eq!(store.list("", None, None, 0).unwrap().entries, [there], "what is known can still be read");
}
