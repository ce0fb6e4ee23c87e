//! Volumes, PersistentVolumes and snapshots as csi-driver-nfs and nfs-subdir-external-provisioner leave them: mounted, copied,
//! expanded, adopted and deleted by controller and node service, on directories instead of exports. Needs root.
//!
//! `takeover/volumes.json` has one PersistentVolume for each form that csi-driver-nfs has written since v3.0. The archives hold
//! one directory tree: `go.tar.gz` and `go.tar` were written by the packer of csi-driver-nfs v4.13.4, `tar.tar.gz` by the tar
//! command that it runs with --use-tar-command-in-snapshot.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_driver::backend::{
    AccessMode, Capability, DeleteSnapshot, DeleteVolume, ExpandVolume, Expansion as _, GetSnapshot,
    GetVolume, NewSnapshot, NewVolume, NodeVolume, PublishTarget, SizeRange, Snapshots as _,
    TargetMounts as _, UnpublishTarget, VolumeContentSource, Volumes as _,
};
use wharf_driver_nfs::controller::{
    AdoptionError, Controller, ControllerOptions, Conversion, ConvertOptions, PersistentVolumeFacts,
};
use wharf_driver_nfs::node::{NodeMounts, NodeOptions};
use wharf_driver_nfs::worker::{Exports, WorkerOptions, WorkerProgram, Workers};
use wharf_linux::{Linux, Mounts as _};

const DRIVER: &str = "nfs.csi.k8s.io";

/// A server `nas`, whose root is the directory `nas`, with controller and node.
struct Place {
    dir: tempfile::TempDir,
    controller: Controller,
    node: NodeMounts,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-nfs-takeover-").tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("nas");
        std::fs::create_dir_all(root.join("export/deep")).unwrap();
        std::fs::write(root.join("export/canary"), "alive").unwrap();
        let exports = Exports::Directories(BTreeMap::from([("nas".to_owned(), root)]));
        let program = WorkerProgram::new(env!("CARGO_BIN_EXE_nfs-test-driver"), &["nfs-worker"]);
        let workers = Workers::new(program, exports, WorkerOptions::default());
        let controller = Controller::new(Arc::new(workers.clone()), None, ControllerOptions::default());
        Self { dir, controller, node: NodeMounts::new(workers, NodeOptions::default()) }
    }

    /// A path on the server.
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("nas").join(path.trim_start_matches('/'))
    }

    /// Mounts the volume as kubelet does, and returns what a pod sees.
    async fn seen_by_a_pod(&self, id: &str, context: &BTreeMap<String, String>) -> Vec<String> {
        let target = self.dir.path().canonicalize().unwrap().join("pod");
        let volume = NodeVolume::new(id, Capability::mount("", AccessMode::MultiNodeMultiWriter))
            .volume_context(context.clone())
            .target(PublishTarget::new(&target));
        self.node.publish(&volume).await.unwrap_or_else(|error| panic!("{id}: {error}"));
        let seen = picture(&target);
        self.node.unpublish(&UnpublishTarget::new(id, &target)).await.unwrap();
        assert!(!target.exists(), "{id}");
        seen
    }

    async fn create(&self, name: &str, share: &str, source: VolumeContentSource) -> (String, PathBuf) {
        let parameters =
            [("server", "nas"), ("share", share)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = NewVolume::new(name, vec![Capability::mount("", AccessMode::MultiNodeMultiWriter)])
            .parameters(BTreeMap::from(parameters))
            .source(Some(source.clone()));
        let volume =
            self.controller.create(&request).await.unwrap_or_else(|error| panic!("{source:?}: {error}"));
        (volume.id, self.at(share).join(name))
    }

    async fn delete(&self, id: &str) {
        self.controller.delete(&DeleteVolume::new(id)).await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (kernel, root) = (Linux::new(), self.dir.path().canonicalize().unwrap());
        for mount in kernel.mount_table().unwrap().mounts().iter().rev() {
            if mount.mount_point.starts_with(&root) {
                let _ = kernel.unmount(&mount.mount_point);
            }
        }
    }
}

/// Everything about a tree that must survive: types, modes, owners, times, link targets and contents.
fn picture(root: &Path) -> Vec<String> {
    fn walk(root: &Path, path: &Path, lines: &mut Vec<String>) {
        let stat = std::fs::symlink_metadata(path).unwrap();
        let content = match stat.file_type() {
            kind if kind.is_symlink() => format!("{:?}", std::fs::read_link(path).unwrap()),
            kind if kind.is_file() => format!("{:?}", std::fs::read(path).unwrap()),
            _ => String::new(),
        };
        let (mode, time) = (stat.mode(), (stat.mtime(), stat.mtime_nsec()));
        let name = path.strip_prefix(root).unwrap().display();
        lines.push(format!("{name} {mode:o} {}:{} {time:?} {content}", stat.uid(), stat.gid()));
        if stat.is_dir() {
            let mut entries: Vec<_> =
                std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            entries.sort();
            entries.iter().for_each(|entry| walk(root, entry, lines));
        }
    }
    let mut lines = Vec::new();
    walk(root, root, &mut lines);
    lines
}

/// The same without the root, whose mode and times are those of the new volume.
fn content(root: &Path) -> Vec<String> {
    picture(root).split_off(1)
}

fn fill(dir: &Path) {
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("file"), "content").unwrap();
    std::fs::write(dir.join("sub/secret"), [0, 255, 7]).unwrap();
    std::fs::set_permissions(dir.join("sub/secret"), std::fs::Permissions::from_mode(0o4640)).unwrap();
    chown(dir.join("file"), Some(12345), Some(12346)).unwrap();
    symlink("sub/secret", dir.join("link")).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o2775)).unwrap();
}

fn volumes() -> Vec<PersistentVolumeFacts> {
    PersistentVolumeFacts::from_list(include_bytes!("takeover/volumes.json"), DRIVER).unwrap()
}

/// The share and the directory of each volume in `volumes.json`, and what remains of it after its deletion.
const EXPECTED: [(&str, &str, &str, &str); 10] = [
    ("v4-default", "/export", "export/pvc-1", ""),
    ("v4-subdir", "/export", "export/ns/data", ""),
    ("v4-retain", "/export", "export/ns/kept", "export/ns/kept"),
    ("v4-archive", "/export", "export/pvc-4", "export/archived-pvc-4"),
    ("v4-root", "/", "pvc-5", ""),
    ("v4-literal-template", "/export", "export/${pvc.metadata.name}", ""),
    ("v4.1-four-parts", "/export", "export/team/pvc-7", ""),
    ("v3.1-three-parts", "/export", "export/pvc-8", ""),
    ("v3.0-slashes", "/export", "export/pvc-9", ""),
    ("v3.0-deep-share", "/export/deep", "export/deep/pvc-10", ""),
];

#[tokio::test]
async fn volumes_of_every_version_are_mounted_copied_expanded_adopted_and_deleted() {
    let (place, volumes) = (Place::new(), volumes());
    assert_eq!(volumes.len(), EXPECTED.len());
    let mut before = Vec::new();
    for (volume, (name, _, directory, _)) in volumes.iter().zip(EXPECTED) {
        assert_eq!(volume.name, name);
        fill(&place.at(directory));
        before.push(picture(&place.at(directory)));
    }
    for ((volume, (name, share, directory, _)), before) in volumes.iter().zip(EXPECTED).zip(&before) {
        let id = volume.handle.as_str();
        assert_eq!(&place.seen_by_a_pod(id, &volume.attributes).await, before, "{name}");
        let get = GetVolume::new(id).volume_context(volume.attributes.clone());
        assert_eq!(place.controller.get(&get).await.unwrap().unwrap().id, id);
        let (clone, at) =
            place.create(&format!("clone-of-{name}"), share, VolumeContentSource::Volume(id.into())).await;
        assert_eq!(content(&at), before[1..], "{name}");
        let new = NewSnapshot::new(format!("snapshot-of-{name}"), id);
        let snapshot =
            place.controller.create_snapshot(&new).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let source = VolumeContentSource::Snapshot(snapshot.id.clone());
        let (restored, at) = place.create(&format!("restored-{name}"), share, source).await;
        assert_eq!(content(&at), before[1..], "{name}");
        let size = SizeRange { required: 5 << 30, limit: None };
        assert_eq!(place.controller.expand(&ExpandVolume::new(id, size)).await.unwrap().capacity, 5 << 30);
        for id in [&clone, &restored] {
            place.delete(id).await;
        }
        place.controller.delete_snapshot(&DeleteSnapshot::new(snapshot.id)).await.unwrap();
        // Nothing proves yet that the directory is the volume's.
        place.delete(id).await;
        assert_eq!(&picture(&place.at(directory)), before, "{name}");
    }
    for volume in &volumes {
        place.controller.adopt(volume).await.unwrap_or_else(|error| panic!("{}: {error}", volume.name));
    }
    for (n, (volume, (name, _, directory, kept))) in volumes.iter().zip(EXPECTED).enumerate() {
        let size = SizeRange { required: 6 << 30, limit: None };
        assert_eq!(
            place.controller.expand(&ExpandVolume::new(&volume.handle, size)).await.unwrap().capacity,
            6 << 30
        );
        place.delete(&volume.handle).await;
        match kept {
            "" => assert!(!place.at(directory).exists(), "{name}"),
            kept => assert_eq!(picture(&place.at(kept)), before[n], "{name}"),
        }
        // The neighbours are unchanged.
        for (before, (name, _, directory, _)) in before.iter().zip(EXPECTED).skip(n + 1) {
            assert_eq!(&picture(&place.at(directory)), before, "{name}");
        }
    }
    assert_eq!(std::fs::read(place.at("export/canary")).unwrap(), b"alive");
}

/// The example of csi-driver-nfs' documentation, whose handle can be any text, and which an administrator may have given the
/// reclaim policy Delete.
#[tokio::test]
async fn static_volumes_are_mounted_and_never_deleted() {
    let place = Place::new();
    fill(&place.at("export/data"));
    let before = picture(&place.at("export"));
    for (id, sub_dir) in [
        ("nas/export##", ""),
        ("nas#export#", ""),
        ("unique-volumeid", "data"),
        ("nas/export/data", "data"),
        ("nas#export#data##", "data"),
    ] {
        let mut attributes = BTreeMap::from([
            ("server".to_owned(), "nas".to_owned()),
            ("share".to_owned(), "/export".to_owned()),
        ]);
        if !sub_dir.is_empty() {
            attributes.insert("subDir".to_owned(), sub_dir.to_owned());
        }
        assert_eq!(
            place.seen_by_a_pod(id, &attributes).await,
            picture(&place.at("export").join(sub_dir)),
            "{id}"
        );
        let get = GetVolume::new(id).volume_context(attributes.clone());
        assert!(place.controller.get(&get).await.unwrap().is_some(), "{id}");
        place.delete(id).await;
        assert_eq!(picture(&place.at("export")), before, "{id}");
        if sub_dir.is_empty() {
            let facts = PersistentVolumeFacts {
                handle: id.to_owned(),
                attributes,
                ..PersistentVolumeFacts::default()
            };
            let adopted = place.controller.adopt(&facts).await;
            assert!(matches!(adopted, Err(AdoptionError::Handle { .. })), "{id}: {adopted:?}");
        }
    }
    assert_eq!(picture(&place.at("export")), before, "no records were written");
}

#[tokio::test]
async fn snapshots_of_csi_driver_nfs_are_restored_exactly_and_deleted() {
    const ARCHIVES: [(&str, &[u8]); 3] = [
        ("pvc-1.tar.gz", include_bytes!("takeover/go.tar.gz")),
        ("pvc-1.tar", include_bytes!("takeover/go.tar")),
        ("pvc-1.tar.gz", include_bytes!("takeover/tar.tar.gz")),
    ];
    let place = Place::new();
    for (n, (file, bytes)) in ARCHIVES.into_iter().enumerate() {
        let (name, archive) = (format!("snapshot-{n}"), place.at(&format!("export/snapshot-{n}/{file}")));
        std::fs::create_dir(archive.parent().unwrap()).unwrap();
        std::fs::write(&archive, bytes).unwrap();
        let id = format!("nas#export#{name}#{name}#pvc-1");
        let found = place.controller.get_snapshot(&GetSnapshot::new(&id)).await.unwrap().unwrap();
        assert_eq!((found.size, found.ready_to_use), (u64::try_from(bytes.len()).unwrap(), true));
        let (volume, at) = place
            .create(&format!("restored-{n}"), "/export", VolumeContentSource::Snapshot(id.clone()))
            .await;
        let time = "(1714979289, 0)";
        let zeros = format!("{:?}", format!("{:0>512}", 7).as_bytes());
        assert_eq!(
            content(&at),
            [
                format!("file 100644 0:0 {time} {:?}", b"hello\n"),
                format!("sub 41777 0:0 {time} "),
                format!("sub/data 100640 12345:12346 {time} {zeros}"),
                format!("sub/empty 40700 12345:0 {time} "),
                format!("sub/link 120777 0:0 {time} \"../file\""),
            ],
            "{file}"
        );
        // The archive is not changed by the restore.
        assert_eq!(std::fs::read(&archive).unwrap(), bytes);
        for _ in 0..2 {
            place.controller.delete_snapshot(&DeleteSnapshot::new(&id)).await.unwrap();
        }
        assert!(!archive.parent().unwrap().exists(), "{file}");
        assert!(at.join("file").exists(), "{file}");
        place.delete(&volume).await;
    }
    // Whatever else is in the directory of a snapshot, it is not the snapshot's.
    std::fs::create_dir(place.at("export/snapshot-9")).unwrap();
    std::fs::write(place.at("export/snapshot-9/pvc-1.tar.gz"), ARCHIVES[0].1).unwrap();
    std::fs::write(place.at("export/snapshot-9/notes"), "precious").unwrap();
    let id = "nas#export#snapshot-9#snapshot-9#pvc-1";
    place.controller.delete_snapshot(&DeleteSnapshot::new(id)).await.unwrap();
    assert_eq!(content(&place.at("export/snapshot-9")).len(), 2);
}

/// The way of a volume of nfs-subdir-external-provisioner: convert, mount, adopt, snapshot, delete as its class says.
#[tokio::test]
async fn volumes_of_nfs_subdir_are_converted_mounted_adopted_and_deleted() {
    let options = ConvertOptions {
        provisioner: "k8s-sigs.io/nfs-subdir-external-provisioner",
        share: "/export",
        driver: DRIVER,
    };
    let conversion = Conversion::of_nfs_subdir(include_bytes!("takeover/nfs-subdir.json"), options).unwrap();
    assert_eq!(conversion.refused, []);
    let list = conversion.list().to_string();
    let volumes = PersistentVolumeFacts::from_list(list.as_bytes(), DRIVER).unwrap();
    let place = Place::new();
    let expected = [
        (
            "nas#export#shop-data-pvc-1#pvc-1#archive",
            "export/shop-data-pvc-1",
            "export/archived-shop-data-pvc-1",
        ),
        ("nas#export#shop/logs#pvc-2#", "export/shop/logs", ""),
        ("nas#export#shop-kept-pvc-3#pvc-3#retain", "export/shop-kept-pvc-3", "export/shop-kept-pvc-3"),
    ];
    assert_eq!(volumes.len(), expected.len());
    for (volume, (handle, directory, kept)) in volumes.iter().zip(expected) {
        assert_eq!(volume.handle, handle);
        fill(&place.at(directory));
        std::fs::set_permissions(place.at(directory), std::fs::Permissions::from_mode(0o777)).unwrap();
        let before = picture(&place.at(directory));
        assert_eq!(place.seen_by_a_pod(handle, &volume.attributes).await, before);
        place.delete(handle).await;
        assert_eq!(picture(&place.at(directory)), before, "not adopted yet");
        place.controller.adopt(volume).await.unwrap();
        let new = NewSnapshot::new(format!("snapshot-of-{}", volume.name), handle);
        let snapshot = place.controller.create_snapshot(&new).await.unwrap();
        place.delete(handle).await;
        match kept {
            "" => assert!(!place.at(directory).exists(), "{handle}"),
            kept => assert_eq!(picture(&place.at(kept)), before, "{handle}"),
        }
        let source = VolumeContentSource::Snapshot(snapshot.id.clone());
        let (restored, at) = place.create(&format!("restored-{}", volume.name), "/export", source).await;
        assert_eq!(content(&at), before[1..], "{handle}");
        place.delete(&restored).await;
        place.controller.delete_snapshot(&DeleteSnapshot::new(snapshot.id)).await.unwrap();
    }
    assert_eq!(std::fs::read(place.at("export/canary")).unwrap(), b"alive");
}
