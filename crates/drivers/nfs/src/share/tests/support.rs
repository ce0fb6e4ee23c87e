//! A share on a temporary directory, with canaries beside and above it, and file operations that fail on demand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::parameters::OnDelete;
use crate::path::SharePath;
use crate::share::{
    CreateVolume, DeleteVolume, PurgeTrash, Request, Response, Share, ShareEnvironment, ShareError,
    VolumeInfo,
};

pub(crate) fn environment(grace: Duration) -> ShareEnvironment {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let new_id = || Ok(format!("{:08x}-id", NEXT.fetch_add(1, Ordering::Relaxed)));
    ShareEnvironment { new_id: Arc::new(new_id), grace, lease: grace, agent: None }
}

pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub(crate) share: Share,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        // In memory: the tests sync thousands of files.
        Self::at_directory(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    /// With extended attributes of users, which file systems in memory have since Linux 6.6.
    pub(crate) fn on_disk() -> Self {
        Self::at_directory(tempfile::tempdir_in("/var/tmp").unwrap())
    }

    fn at_directory(dir: tempfile::TempDir) -> Self {
        std::fs::create_dir(dir.path().join("root")).unwrap();
        std::fs::write(dir.path().join("canary"), "alive").unwrap();
        let share = Share::open(&dir.path().join("root"), environment(Duration::ZERO)).unwrap();
        Self { dir, share }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A path in the share.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let file = self.at(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }

    /// Sets the modification times of all files and directories beneath a path two hours back.
    pub(crate) fn age(&self, path: &str) {
        let before = SystemTime::now() - Duration::from_secs(7200);
        for beneath in tree(&self.at(path)) {
            let file = std::fs::File::open(self.at(path).join(beneath)).unwrap();
            file.set_modified(before).unwrap();
        }
    }

    pub(crate) fn create(&self, handle: &str, path: &str) -> Result<VolumeInfo, ShareError> {
        create(&self.share, &volume(handle, path))
    }

    pub(crate) fn delete(&self, handle: &str) -> Result<(), ShareError> {
        delete(&self.share, handle)
    }

    /// Everything in the share but the driver's records, sorted.
    pub(crate) fn tree(&self) -> Vec<String> {
        tree(&self.root()).into_iter().filter(|path| !path.starts_with(".wharf")).collect()
    }

    /// The driver's records and other files that remain, after recovery and purge.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        leftovers(&self.share, &self.root())
    }

    pub(crate) fn assert_canary(&self) {
        assert_eq!(std::fs::read_to_string(self.dir.path().join("canary")).unwrap(), "alive");
    }
}

pub(crate) fn volume(handle: &str, path: &str) -> CreateVolume {
    CreateVolume {
        handle: handle.to_owned(),
        name: format!("name-of-{handle}"),
        path: SharePath::new(path).unwrap(),
        size: 1 << 30,
        limit: None,
        context: BTreeMap::from([("server".to_owned(), "srv".to_owned())]),
        options: vec!["hard".to_owned()],
        on_delete: None,
        source: None,
        mode: None,
        uid: None,
        gid: None,
        quota: Default::default(),
    }
}

pub(crate) fn create(share: &Share, request: &CreateVolume) -> Result<VolumeInfo, ShareError> {
    match share.handle(Request::CreateVolume(request.clone())) {
        Response::CreateVolume(result) => result,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn delete(share: &Share, handle: &str) -> Result<(), ShareError> {
    let request = DeleteVolume { handle: handle.to_owned(), default_on_delete: OnDelete::Delete };
    match share.handle(Request::DeleteVolume(request)) {
        Response::DeleteVolume(result) => result.map(drop),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn recover(share: &Share) -> Result<u64, ShareError> {
    match share.handle(Request::Recover) {
        Response::Recover(result) => result,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn purge(share: &Share, max_entries: u64) -> Result<bool, ShareError> {
    match share.handle(Request::PurgeTrash(PurgeTrash { max_entries })) {
        Response::PurgeTrash(result) => result,
        other => panic!("{other:?}"),
    }
}

/// All paths beneath a directory, sorted. Symlinks are not followed.
pub(crate) fn tree(root: &Path) -> Vec<String> {
    fn walk(root: &Path, dir: &Path, paths: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            paths.push(entry.path().strip_prefix(root).unwrap().to_string_lossy().into_owned());
            if entry.file_type().unwrap().is_dir() {
                walk(root, &entry.path(), paths);
            }
        }
    }
    let mut paths = Vec::new();
    walk(root, root, &mut paths);
    paths.sort();
    paths
}

/// What recovery and purge leave in `.wharf`, besides its fixed directories.
pub(crate) fn leftovers(share: &Share, root: &Path) -> Vec<String> {
    for _ in 0..4 {
        let recovered = recover(share).unwrap();
        if purge(share, u64::MAX).unwrap() && recovered == 0 {
            break;
        }
    }
    let fixed = [
        "volumes",
        "names",
        "directories",
        "staging",
        "trash",
        "tmp",
        "snapshots",
        "jobs",
        "content",
        "share.json",
        "reserve",
    ];
    let own = tree(&root.join(".wharf"));
    own.into_iter().filter(|path| !fixed.contains(&path.as_str())).collect()
}
