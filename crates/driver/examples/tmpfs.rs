//! A complete CSI driver whose volumes are tmpfs mounts. Run it as root:
//! `cargo run -p wharf-driver --example tmpfs -- --endpoint unix:///tmp/csi.sock --node-id n1`
//!
//! It shows what a backend implements: the list of volumes, and what to mount. A volume's data exists as long as it is
//! mounted, and the list of volumes as long as the driver runs.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};
use wharf_driver::backend::{
    BackendError, Capability, CreateError, DeleteError, DeleteVolume, DeviceError, GetVolume, ListPage,
    ListVolumes, Listing, MountAccess, MountSource, NewVolume, NodeVolume, Shares, Volume, VolumeAccess,
    Volumes,
};
use wharf_driver::{Driver, Endpoint, Linux, NodeInfo, ServeOptions, async_trait};

const MIB: u64 = 1 << 20;

/// Sizes by id. A volume's id is derived from its name, so that the same name is always the same volume.
#[derive(Default)]
struct Tmpfs(Mutex<BTreeMap<String, u64>>);

impl Tmpfs {
    fn sizes(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn volume(id: &str, capacity: u64) -> Volume {
    Volume { id: id.to_owned(), capacity, ..Volume::default() }
}

#[async_trait]
impl Volumes for Tmpfs {
    async fn create(&self, request: &NewVolume) -> Result<Volume, CreateError> {
        // Names can be longer than ids and contain any character.
        let id = format!("tmpfs-{}", request.name.bytes().fold(0u128, hash));
        let too_large = || CreateError::OutOfRange("no tmpfs can have this size".into());
        let size =
            request.size.choose(64 * MIB, MIB).filter(|size| *size <= 1 << 40).ok_or_else(too_large)?;
        let capacity = *self.sizes().entry(id.clone()).or_insert(size);
        Ok(volume(&id, capacity))
    }

    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        self.sizes().remove(&request.id);
        Ok(())
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        Ok(self.sizes().get(&request.id).map(|capacity| volume(&request.id, *capacity)))
    }

    fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
        match capability.access {
            VolumeAccess::Block => Some("a tmpfs cannot be used as a block device".into()),
            VolumeAccess::Mount(_) if !capability.mode.is_single_node() => {
                Some("a tmpfs is available on one node only".into())
            }
            VolumeAccess::Mount(_) => None,
        }
    }

    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        parameters.keys().next().map(|key| format!("unknown parameter {key:?}"))
    }
}

/// FNV-1a. Good enough for an example; a driver that stores data would also compare the names.
fn hash(hash: u128, byte: u8) -> u128 {
    (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B)
}

#[async_trait]
impl Listing for Tmpfs {
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError> {
        let sizes = self.sizes();
        let after = request.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = sizes.range::<str, _>((after, Bound::Unbounded)).map(|(id, size)| volume(id, *size));
        let entries = rest.by_ref().take(request.max).collect();
        Ok(ListPage { entries, more: rest.next().is_some() })
    }
}

#[async_trait]
impl Shares for Tmpfs {
    async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError> {
        let size = self.sizes().get(&volume.id).copied();
        let size =
            size.ok_or_else(|| DeviceError::NotFound(format!("volume {} does not exist", volume.id)))?;
        let mut options = vec![format!("size={size}")];
        match &volume.capability.access {
            VolumeAccess::Mount(MountAccess { mount_group: Some(group), .. }) => {
                options.extend([format!("gid={group}"), "mode=2770".into()]);
            }
            _ => options.push("mode=0777".into()),
        }
        Ok(MountSource { source: volume.id.clone(), fs_type: "tmpfs".into(), options })
    }

    /// The kernel gives the root of a tmpfs to the group in `gid=`, so kubelet need not change its owner.
    fn mount_group(&self) -> bool {
        true
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flags: HashMap<&str, &str> =
        arguments.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let endpoint: Endpoint = flags.remove("--endpoint").ok_or("--endpoint is missing")?.parse()?;
    let node_id = flags.remove("--node-id").ok_or("--node-id is missing")?.to_owned();

    let tmpfs = Arc::new(Tmpfs::default());
    let driver = Driver::new("tmpfs.example.wharf.dev", env!("CARGO_PKG_VERSION"))?
        .volumes(tmpfs.clone())
        .listing(tmpfs.clone())
        .share_node(Arc::new(Linux::new()), tmpfs, NodeInfo { node_id, max_volumes: 0 })
        .build();
    let mut stop = signal(SignalKind::terminate())?;
    let stopped = async move {
        stop.recv().await;
    };
    driver.serve(&endpoint, ServeOptions::default(), stopped).await?;
    Ok(())
}
