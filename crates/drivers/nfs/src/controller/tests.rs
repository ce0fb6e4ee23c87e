//! The controller on shares that are plain directories.

mod adoption;
mod maintenance;
mod snapshots;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use wharf_driver::backend::{
    AccessMode, BackendError, Capability, Capacity as _, CapacityQuery, CreateError, DeleteVolume,
    ExpandError, ExpandVolume, Expansion as _, GetVolume, GetVolumeHealth, Health as _, HealthStatus,
    MountAccess, NewVolume, SizeRange, Volume, VolumeAccess, Volumes as _,
};

use super::{
    ClaimMetadata, ClusterObjects, Controller, ControllerOptions, PersistentVolumeFacts, VolumeMount,
};
use crate::handle::VolumeHandle;
use crate::handle::tests::hostile_handles;
use crate::parameters::OnDelete;
use crate::share::{Request, Response, Share, ShareEnvironment};
use crate::worker::{Export, ShareClient, WorkerError};

/// Serves `server:/share` from `<dir>/<server>/<share>`, in this process.
struct Directories {
    dir: tempfile::TempDir,
    calls: Mutex<Vec<(Export, Request)>>,
    jobs_ignored: AtomicBool,
}

impl Directories {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir_all(dir.path().join("srv/share")).unwrap();
        std::fs::write(dir.path().join("srv/canary"), "alive").unwrap();
        Self { dir, calls: Mutex::default(), jobs_ignored: AtomicBool::new(false) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("srv/share").join(path)
    }

    /// Jobs are accepted from now on, but never run.
    fn ignore_jobs(&self) {
        self.jobs_ignored.store(true, Ordering::Relaxed);
    }

    fn run(&self, export: &Export, request: Request) -> Result<Response, WorkerError> {
        self.calls.lock().unwrap().push((export.clone(), request.clone()));
        let root = self.dir.path().join(&export.server).join(export.share.trim_matches('/'));
        if !root.is_dir() {
            return Err(WorkerError::Unreachable { server: export.server.clone(), reason: "unknown".into() });
        }
        Ok(Share::open(&root, ShareEnvironment::default()).unwrap().handle(request))
    }
}

#[async_trait]
impl ShareClient for Directories {
    async fn call(&self, export: &Export, request: Request, _: Duration) -> Result<Response, WorkerError> {
        self.run(export, request)
    }
    async fn start_job(
        &self,
        export: &Export,
        _: &str,
        request: Request,
        _: Duration,
    ) -> Result<(), WorkerError> {
        if self.jobs_ignored.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.run(export, request).map(drop)
    }
    fn job_runs(&self, _: &str) -> bool {
        false
    }
    fn job_failed(&self, _: &str) -> bool {
        false
    }
}

/// A cluster with one claim and one volume.
#[derive(Debug)]
struct Objects;

#[async_trait]
impl ClusterObjects for Objects {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimMetadata>, String> {
        let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
        let found = (namespace, name) == ("ns", "data");
        Ok(found.then(|| ClaimMetadata { labels, ..ClaimMetadata::default() }))
    }

    async fn volume(&self, name: &str) -> Result<Option<VolumeMount>, String> {
        let volume = VolumeMount {
            handle: "srv#share#pvc-1##".to_owned(),
            attributes: map(&[("server", "srv"), ("share", "/share"), ("tls", "mtls")]),
            mount_options: vec!["nfsvers=4.2".to_owned()],
        };
        match name {
            "pvc-1" => Ok(Some(volume)),
            "unreadable" => Err("forbidden".to_owned()),
            _ => Ok(None),
        }
    }

    async fn users(&self) -> Result<Vec<VolumeMount>, String> {
        let attributes = map(&[("server", "srv"), ("share", "/share")]);
        Ok(vec![VolumeMount { attributes, ..VolumeMount::default() }])
    }
}

fn controller(default_on_delete: OnDelete) -> (Arc<Directories>, Controller) {
    let directories = Arc::new(Directories::new());
    let options = ControllerOptions { default_on_delete, ..ControllerOptions::default() };
    (directories.clone(), Controller::new(directories, Some(Arc::new(Objects)), options))
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn requested(name: &str, pairs: &[(&str, &str)]) -> NewVolume {
    let mut parameters = map(&[("server", "srv"), ("share", "/share")]);
    parameters.extend(map(pairs));
    NewVolume::new(name, vec![Capability::mount("", AccessMode::MultiNodeMultiWriter)])
        .size(SizeRange { required: 1 << 30, limit: None })
        .parameters(parameters)
}

const CLAIM: [(&str, &str); 2] =
    [("csi.storage.k8s.io/pvc/name", "data"), ("csi.storage.k8s.io/pvc/namespace", "ns")];

#[tokio::test]
async fn volumes_are_answered_as_by_csi_driver_nfs() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
    assert_eq!(volume.id, "srv#share#pvc-1##");
    assert_eq!(volume.capacity, 0);
    assert_eq!(volume.context, map(&[("server", "srv"), ("share", "/share"), ("subdir", "pvc-1")]));
    let mut pairs = CLAIM.to_vec();
    pairs.extend([("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"), ("onDelete", "Retain")]);
    let nested = controller.create(&requested("pvc-2", &pairs)).await.unwrap();
    assert_eq!(nested.id, "srv#share#ns/data#pvc-2#Retain");
    assert_eq!(nested.context["subDir"], "ns/data");
    assert!(directories.at("ns/data").is_dir());
    assert_eq!(controller.create(&requested("pvc-1", &[])).await.unwrap(), volume);

    controller.delete(&DeleteVolume::new(volume.id.clone())).await.unwrap();
    controller.delete(&DeleteVolume::new(nested.id)).await.unwrap();
    assert!(!directories.at("pvc-1").exists() && directories.at("ns/data").is_dir());
    assert_eq!(controller.get(&GetVolume::new(volume.id)).await.unwrap(), None);
}

#[tokio::test]
async fn default_policy_is_part_of_the_handle() {
    let (directories, controller) = controller(OnDelete::Archive);
    let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
    assert_eq!(volume.id, "srv#share#pvc-1##archive");
    controller.delete(&DeleteVolume::new(volume.id)).await.unwrap();
    assert!(directories.at("archived-pvc-1").is_dir());
    let volume = controller.create(&requested("pvc-2", &[("onDelete", "delete")])).await.unwrap();
    assert_eq!(volume.id, "srv#share#pvc-2##");
    controller.delete(&DeleteVolume::new(volume.id)).await.unwrap();
    assert!(!directories.at("archived-pvc-2").exists());
}

// B30
#[tokio::test]
async fn labels_of_the_claim_are_read_for_templates() {
    let (directories, controller) = controller(OnDelete::Delete);
    let mut pairs = CLAIM.to_vec();
    pairs.push(("subDir", "${pvc.metadata.labels['team']}/${pvc.metadata.name}"));
    controller.create(&requested("pvc-1", &pairs)).await.unwrap();
    assert!(directories.at("blue/data").is_dir());
    let no_metadata = requested("pvc-2", &[("subDir", "${pvc.metadata.labels['team']}")]);
    assert!(matches!(controller.create(&no_metadata).await, Err(CreateError::Invalid(_))));
}

// B4, B5
#[tokio::test]
async fn invalid_requests_create_nothing() {
    let (directories, controller) = controller(OnDelete::Delete);
    for pairs in [
        &[("subDir", "a#b")][..],
        &[("subDir", "../x")],
        &[("subDir", "/")],
        &[("subDir", ".wharf/x")],
        &[("subDir", "${pvc.metadata.name}")],
        &[("subDir", "x/${unknown}")],
        &[("share", "/a#b")],
        &[("csi.storage.k8s.io/pvc/name", ".."), ("subDir", "${pvc.metadata.name}")],
    ] {
        let created = controller.create(&requested("pvc-1", pairs)).await;
        assert!(matches!(created, Err(CreateError::Invalid(_))), "{pairs:?}: {created:?}");
    }
    for name in ["a#b", "a/b", "..", ".wharf", "a\\b"] {
        let created = controller.create(&requested(name, &[])).await;
        assert!(matches!(created, Err(CreateError::Invalid(_))), "{name}: {created:?}");
    }
    assert!(directories.calls.lock().unwrap().is_empty());
}

// B21
#[tokio::test]
async fn same_name_with_other_size_is_refused() {
    let (_directories, controller) = controller(OnDelete::Delete);
    controller.create(&requested("pvc-1", &[])).await.unwrap();
    let larger = requested("pvc-1", &[]).size(SizeRange { required: 2 << 30, limit: None });
    assert!(matches!(controller.create(&larger).await, Err(CreateError::Exists(_))));
}

// B1, B2, CVE-2026-3864
#[tokio::test]
async fn hostile_handles_are_deleted_without_effect() {
    let (directories, controller) = controller(OnDelete::Delete);
    std::fs::create_dir_all(directories.at("sub/x")).unwrap();
    std::fs::create_dir_all(directories.at("x")).unwrap();
    controller.create(&requested("neighbour", &[])).await.unwrap();
    for handle in
        hostile_handles().into_iter().chain(["server#share#".into(), "srv#share#neighbour#u#".into()])
    {
        match controller.delete(&DeleteVolume::new(handle.clone())).await {
            Ok(()) => {}
            // A handle can name a server that does not exist.
            Err(error) => assert!(!handle.starts_with("srv#share#"), "{handle}: {error}"),
        }
    }
    for path in ["sub/x", "x", "neighbour", "../canary"] {
        assert!(directories.at(path).exists(), "{path}");
    }
}

// B9
#[tokio::test]
async fn delete_mounts_with_the_options_of_the_secret_or_of_the_class() {
    let (directories, controller) = controller(OnDelete::Delete);
    let mount = MountAccess::new("").flags(["vers=4.1,xprtsec=mtls"]);
    let mut request = requested("pvc-1", &[]);
    request.capabilities =
        vec![Capability::new(VolumeAccess::Mount(mount), AccessMode::MultiNodeMultiWriter)];
    let volume = controller.create(&request).await.unwrap();
    controller.delete(&DeleteVolume::new(volume.id.clone())).await.unwrap();
    let secrets = map(&[("MountOptions", "sec=krb5p")]);
    controller.delete(&DeleteVolume::new(volume.id).secrets(secrets)).await.unwrap();
    let calls = directories.calls.lock().unwrap();
    let options: Vec<_> = calls
        .iter()
        .filter(|(_, request)| matches!(request, Request::DeleteVolume(_)))
        .map(|(export, _)| export.options.clone())
        .collect();
    assert_eq!(options, [vec!["vers=4.1", "xprtsec=mtls"], vec!["sec=krb5p"]]);
}

/// Two classes of one share: the options of either may not be those of the volume.
#[tokio::test]
async fn options_are_those_of_the_volume_if_classes_of_a_share_differ() {
    let (directories, controller) = controller(OnDelete::Delete);
    for (name, version) in [("pvc-8", "vers=4.2"), ("pvc-9", "vers=4.1")] {
        let mount = MountAccess::new("").flags([version]);
        let mut request = requested(name, &[]);
        request.capabilities =
            vec![Capability::new(VolumeAccess::Mount(mount), AccessMode::MultiNodeMultiWriter)];
        controller.create(&request).await.unwrap();
    }
    for (id, expected) in [
        ("srv#share#pvc-1##", &["vers=4.2", "xprtsec=mtls"][..]),
        // Without a PersistentVolume: those that worked last.
        ("srv#share#pvc-7##", &["vers=4.2", "xprtsec=mtls"]),
    ] {
        controller.delete(&DeleteVolume::new(id)).await.unwrap();
        let calls = directories.calls.lock().unwrap();
        let last = calls.iter().rev().find(|(_, request)| matches!(request, Request::DeleteVolume(_)));
        assert_eq!(last.unwrap().0.options, expected, "{id}");
    }
}

/// B9: a restarted driver knows no options. The PersistentVolume has those of the class.
#[tokio::test]
async fn restarted_driver_mounts_with_the_options_of_the_persistent_volume() {
    let options = vec!["vers=4.2".to_owned(), "xprtsec=mtls".to_owned()];
    for (id, expected) in [
        ("srv#share#pvc-1##", &options[..]),
        ("srv#share#team/data#pvc-1#", &options),
        ("srv#share#other##", &[]),
        ("srv#share#unreadable##", &[]),
        // A crafted handle does not get the options of a volume on another share.
        ("srv#elsewhere#pvc-1##", &[]),
    ] {
        let (directories, controller) = controller(OnDelete::Delete);
        let _ = controller.delete(&DeleteVolume::new(id)).await;
        let calls = directories.calls.lock().unwrap();
        assert!(
            !calls.is_empty() && calls.iter().all(|(export, _)| export.options == expected),
            "{id}: {calls:?}"
        );
    }
    let (directories, controller) = controller(OnDelete::Delete);
    controller.expand(&ExpandVolume::new("srv#share#pvc-1##", SizeRange::default())).await.unwrap_err();
    let id = "srv#share#snap-1#snap-1#pvc-1";
    wharf_driver::backend::Snapshots::delete_snapshot(
        &controller,
        &wharf_driver::backend::DeleteSnapshot::new(id),
    )
    .await
    .unwrap();
    let calls = directories.calls.lock().unwrap();
    assert!(calls.iter().all(|(export, _)| export.options == options), "{calls:?}");
}

#[tokio::test]
async fn expansion_records_the_size_and_capacity_is_that_of_the_share() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
    let size = |required, limit| SizeRange { required, limit };
    let expand = |id: &str, size| ExpandVolume::new(id, size);
    let grown = controller.expand(&expand(&volume.id, size(3 << 30, None))).await.unwrap();
    assert_eq!((grown.capacity, grown.node_expansion_required), (3 << 30, false));
    let smaller = controller.expand(&expand(&volume.id, size(1, Some(2)))).await;
    assert!(matches!(smaller, Err(ExpandError::OutOfRange(_))));
    // A volume of csi-driver-nfs without a record.
    std::fs::create_dir(directories.at("old")).unwrap();
    assert_eq!(controller.expand(&expand("srv#share#old##", size(7, None))).await.unwrap().capacity, 7);
    let missing = controller.expand(&expand("srv#share#none##", size(7, None))).await;
    assert!(matches!(missing, Err(ExpandError::NotFound(_))));
    // A static volume, whose size is only in the PersistentVolume: its handle can be any text.
    for id in ["nas/share##", "any text", "srv#share#", "srv#share#../x##"] {
        assert_eq!(controller.expand(&expand(id, size(9, None))).await.unwrap().capacity, 9, "{id}");
    }

    let query = CapacityQuery::new(map(&[("server", "srv"), ("share", "/share")]));
    assert!(controller.capacity(&query).await.unwrap().available > 0);
    assert_eq!(controller.capacity(&CapacityQuery::default()).await.unwrap().available, 0);
}

#[tokio::test]
async fn static_volumes_exist_by_their_attributes() {
    let (_directories, controller) = controller(OnDelete::Delete);
    let context = map(&[("server", "srv"), ("share", "/share")]);
    let get = GetVolume::new("any text").volume_context(context);
    let volume = Volume { id: "any text".into(), ..Volume::default() };
    assert_eq!(controller.get(&get).await.unwrap(), Some(volume));
    assert_eq!(controller.get(&GetVolume::new("any text")).await.unwrap(), None);
    let block = Capability::block(AccessMode::SingleNodeWriter);
    assert!(controller.refuses(None, &block).is_some());
    assert_eq!(controller.refuses_parameters(&BTreeMap::new()), None);
    assert!(controller.refuses_parameters(&map(&[("server", "s"), ("x", "y")])).is_some());
}

#[tokio::test]
async fn health_tells_missing_directories_and_unreachable_servers() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
    let health = async |id: &str| controller.volume_health(&GetVolumeHealth::new(id)).await.unwrap();
    assert_eq!(health(&volume.id).await, Some(vec![]));
    std::fs::remove_dir(directories.at("pvc-1")).unwrap();
    assert_eq!(health(&volume.id).await.unwrap()[0].status, HealthStatus::DataLoss);
    let down = health("other#share#x##").await.unwrap();
    assert_eq!((down[0].status, down[0].reason.as_str()), (HealthStatus::Inaccessible, "ServerUnreachable"));
    assert_eq!(health("any text").await, None);
}

#[tokio::test]
async fn unreachable_server_is_unavailable() {
    let (_directories, controller) = controller(OnDelete::Delete);
    let created = controller.create(&requested("pvc-1", &[("server", "other")])).await;
    assert!(matches!(created, Err(CreateError::Backend(BackendError::Unavailable(_)))), "{created:?}");
}

#[tokio::test]
async fn volumes_of_csi_driver_nfs_are_adopted() {
    let (directories, controller) = controller(OnDelete::Delete);
    std::fs::create_dir(directories.at("pvc-1")).unwrap();
    std::fs::write(directories.at("pvc-1/data"), "1").unwrap();
    let facts = PersistentVolumeFacts {
        name: "pvc-1".into(),
        handle: "srv#share#pvc-1##".into(),
        attributes: map(&[("server", "srv"), ("share", "/share"), ("subdir", "pvc-1")]),
        mount_options: vec!["nfsvers=4.1".into()],
        capacity: 1 << 30,
        ..PersistentVolumeFacts::default()
    };
    // Without a record nothing is deleted.
    controller.delete(&DeleteVolume::new(facts.handle.clone())).await.unwrap();
    assert!(directories.at("pvc-1/data").exists());
    controller.adopt(&facts).await.unwrap();
    controller.adopt(&facts).await.unwrap();
    controller.delete(&DeleteVolume::new(facts.handle.clone())).await.unwrap();
    assert!(!directories.at("pvc-1").exists());
    assert!(controller.adopt(&facts).await.is_err());
}
