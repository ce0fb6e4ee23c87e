//! The Node service for all types of backends: [`block::Block`] volumes, [`share::Share`]s, and [`TargetMounts`].
//!
//! Guarantees: each request is validated first; one operation per volume runs at a time, to its end; and the service holds
//! no state about volumes, so a restart of the driver neither breaks nor loses a mount. This file validates requests and
//! passes them to the backend. Start reading at `block.rs`.

mod block;
mod blocking_kernel;
mod error;
mod expand;
mod fs_size;
mod grow;
mod health;
mod mounts;
mod paths;
mod prepare;
mod publish;
mod share;
mod stage;
mod stats;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::node_service_capability::rpc::Type;
use wharf_linux::Kernel;

use self::block::{Block, fs_type_of};
use self::blocking_kernel::BlockingKernel;
use self::error::NodeError;
use self::mounts::VolumeMode;
use self::publish::PublishRequest;
use self::share::Share;
use crate::NodeInfo;
use crate::backend::{
    Capability, Devices, GetStorageHealth, GetUsage, GetVolume, GetVolumeHealth, Health, NodeVolume,
    PublishTarget, RefreshDevice, Secrets, Shares, TargetMounts, Topology, UnpublishTarget, VolumeAccess,
    Volumes,
};
use crate::locks::{Locks, volume_key};
use crate::validate::{self, Rules};
use crate::wire;

/// The Node service of a driver. `volumes`, if set, is queried whether a volume exists and supports a capability.
#[derive(Clone)]
pub(crate) struct NodeService {
    pub(crate) backend: NodeBackend,
    pub(crate) health: Option<Arc<dyn Health>>,
    pub(crate) volumes: Option<Arc<dyn Volumes>>,
    pub(crate) info: NodeInfo,
    pub(crate) topology: Option<Topology>,
    pub(crate) locks: Locks,
    pub(crate) rules: Rules,
}

#[derive(Clone)]
pub(crate) enum NodeBackend {
    Block(Block),
    Share(Share),
    Target(Arc<dyn TargetMounts>),
}

impl NodeBackend {
    pub(crate) fn block(kernel: Arc<dyn Kernel>, devices: Arc<dyn Devices>) -> Self {
        Self::Block(Block { kernel: BlockingKernel::new(kernel), devices })
    }

    pub(crate) fn share(kernel: Arc<dyn Kernel>, shares: Arc<dyn Shares>) -> Self {
        Self::Share(Share { kernel: BlockingKernel::new(kernel), shares })
    }

    /// VOLUME_MOUNT_GROUP. CSI passes the group to the mount call, and the file systems of block volumes have no mount
    /// option for it.
    pub(crate) fn mount_group(&self) -> bool {
        match self {
            Self::Block(_) | Self::Target(_) => false,
            Self::Share(share) => share.shares.mount_group(),
        }
    }

    /// Whether volumes are staged before they are published.
    fn stages(&self) -> bool {
        !matches!(self, Self::Target(_))
    }
}

impl NodeService {
    /// Derived from the backend, so that the driver declares exactly what it serves.
    fn capabilities(&self) -> Vec<Type> {
        let expands = matches!(self.backend, NodeBackend::Block(_));
        let health = self.health.is_some() || matches!(self.backend, NodeBackend::Target(_));
        [
            (Type::StageUnstageVolume, self.backend.stages()),
            (Type::GetVolumeStats, true),
            (Type::SingleNodeMultiWriter, true),
            (Type::ExpandVolume, expands),
            (Type::VolumeMountGroup, self.rules.mount_group),
            (Type::GetVolumeHealth, health),
            (Type::GetStorageHealth, health),
        ]
        .into_iter()
        .filter_map(|(kind, given)| given.then_some(kind))
        .collect()
    }

    /// Runs an operation to its end while it holds the volume's lock.
    async fn run_exclusive<T: Send + 'static>(
        &self,
        id: String,
        operation: impl Future<Output = Result<T, NodeError>> + Send + 'static,
    ) -> Result<T, Status> {
        let key = volume_key(&id);
        self.locks.run([key], async move { operation.await.map_err(|error| error.status(&id)) }).await
    }

    /// Checks that the volume exists and supports the capability, if the driver has a controller backend.
    async fn check_usable(&self, volume: &NodeVolume) -> Result<(), NodeError> {
        let get = GetVolume::new(volume.id.clone())
            .volume_context(volume.volume_context.clone())
            .secrets(volume.secrets.clone());
        match self.refuses(&get, &volume.capability).await? {
            Some(reason) => Err(NodeError::Precondition(reason)),
            None => Ok(()),
        }
    }

    /// The reason why the volume, which must exist, does not support the capability.
    async fn refuses(&self, get: &GetVolume, capability: &Capability) -> Result<Option<String>, NodeError> {
        let Some(volumes) = self.volumes() else { return Ok(None) };
        let volume = volumes.get(get).await?.ok_or_else(no_such_volume)?;
        Ok(volumes.refuses(Some(&volume), capability))
    }

    async fn stage(
        &self,
        request: v1::NodeStageVolumeRequest,
    ) -> Result<v1::NodeStageVolumeResponse, Status> {
        self.check_stages()?;
        let id = self.volume_id(request.volume_id)?;
        let volume = NodeVolume::new(id, self.rules.capability(&request.volume_capability)?);
        validate::map("publish_context", &request.publish_context)?;
        validate::map("volume_context", &request.volume_context)?;
        let volume = volume
            .publish_context(request.publish_context)
            .volume_context(request.volume_context)
            .secrets(request.secrets);
        let staging = paths::mount_path("staging_target_path", &request.staging_target_path)?;
        let this = self.clone();
        self.run_exclusive(volume.id.clone(), async move {
            this.check_usable(&volume).await?;
            match &this.backend {
                NodeBackend::Block(block) => block.stage(volume, staging).await,
                NodeBackend::Share(share) => share.stage(volume, staging).await,
                NodeBackend::Target(_) => Err(NodeError::Unsupported(NOT_STAGED)),
            }
        })
        .await?;
        Ok(v1::NodeStageVolumeResponse {})
    }

    async fn unstage(
        &self,
        request: v1::NodeUnstageVolumeRequest,
    ) -> Result<v1::NodeUnstageVolumeResponse, Status> {
        self.check_stages()?;
        let id = self.volume_id(request.volume_id)?;
        let staging = paths::mount_path("staging_target_path", &request.staging_target_path)?;
        let (this, volume) = (self.clone(), id.clone());
        self.run_exclusive(id, async move {
            match &this.backend {
                NodeBackend::Block(block) => block.unstage(&volume, staging).await,
                NodeBackend::Share(share) => share.unstage(staging).await,
                NodeBackend::Target(_) => Err(NodeError::Unsupported(NOT_STAGED)),
            }
        })
        .await?;
        Ok(v1::NodeUnstageVolumeResponse {})
    }

    async fn publish(
        &self,
        request: v1::NodePublishVolumeRequest,
    ) -> Result<v1::NodePublishVolumeResponse, Status> {
        let id = self.volume_id(request.volume_id)?;
        let volume = NodeVolume::new(id, self.rules.capability(&request.volume_capability)?);
        validate::map("publish_context", &request.publish_context)?;
        validate::map("volume_context", &request.volume_context)?;
        let target = paths::mount_path("target_path", &request.target_path)?;
        let staging = match (self.backend.stages(), request.staging_target_path.as_str()) {
            (false, _) => None,
            (true, "") => {
                return Err(Status::failed_precondition(
                    "staging_target_path is required: stage the volume first",
                ));
            }
            (true, path) => Some(paths::mount_path("staging_target_path", path)?),
        };
        let volume = volume
            .publish_context(request.publish_context)
            .volume_context(request.volume_context)
            .secrets(request.secrets)
            .target(PublishTarget::new(target.clone()).read_only(request.readonly));
        let this = self.clone();
        self.run_exclusive(volume.id.clone(), async move {
            this.check_usable(&volume).await?;
            let request = |staging: Option<PathBuf>| {
                let staging = staging.unwrap_or_default();
                publish_request(&volume.capability, staging, target, request.readonly, &this.backend)
            };
            match &this.backend {
                NodeBackend::Block(block) => {
                    let publish = request(staging)?;
                    block.publish(&volume, publish).await
                }
                NodeBackend::Share(share) => {
                    let publish = request(staging)?;
                    share.publish(volume, publish).await
                }
                NodeBackend::Target(mounts) => Ok(mounts.publish(&volume).await?),
            }
        })
        .await?;
        Ok(v1::NodePublishVolumeResponse {})
    }

    async fn unpublish(
        &self,
        request: v1::NodeUnpublishVolumeRequest,
    ) -> Result<v1::NodeUnpublishVolumeResponse, Status> {
        let id = self.volume_id(request.volume_id)?;
        let target = paths::mount_path("target_path", &request.target_path)?;
        let (this, volume) = (self.clone(), id.clone());
        self.run_exclusive(id, async move {
            match &this.backend {
                NodeBackend::Block(block) => block.unpublish(&volume, target).await,
                NodeBackend::Share(share) => share.unpublish(target).await,
                NodeBackend::Target(mounts) => {
                    Ok(mounts.unpublish(&UnpublishTarget::new(volume, target)).await?)
                }
            }
        })
        .await?;
        Ok(v1::NodeUnpublishVolumeResponse {})
    }

    /// Read-only, so it takes no lock.
    async fn stats(
        &self,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse, Status> {
        let id = self.volume_id(request.volume_id)?;
        let path = paths::volume_path("volume_path", &request.volume_path)?;
        let usage = async {
            self.exists(&GetVolume::new(id.clone())).await?;
            let path = path.ok_or_else(|| invalid_path(&request.volume_path))?;
            match &self.backend {
                NodeBackend::Block(block) => block.stats(&id, path).await,
                NodeBackend::Share(share) => share.stats(path).await,
                NodeBackend::Target(mounts) => {
                    let usage = mounts.usage(&GetUsage::new(id.clone(), path)).await?;
                    Ok(stats::filesystem(&usage))
                }
            }
        };
        let usage = usage.await.map_err(|error| error.status(&id))?;
        Ok(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None })
    }

    async fn expand(
        &self,
        request: v1::NodeExpandVolumeRequest,
    ) -> Result<v1::NodeExpandVolumeResponse, Status> {
        let id = self.volume_id(request.volume_id)?;
        let path = paths::volume_path("volume_path", &request.volume_path)?;
        let staging = paths::optional_path("staging_target_path", &request.staging_target_path)?;
        let size = validate::size("capacity_range", &request.capacity_range)?;
        let capability = self.rules.optional_capability(&request.volume_capability)?;
        let this = self.clone();
        let refresh = RefreshDevice::new(id.clone(), size.required)
            .limit(size.limit)
            .volume_path(path.clone())
            .staging_path(staging)
            .capability(capability)
            .secrets(Secrets::from(request.secrets));
        let capacity = self
            .run_exclusive(id, async move {
                let get = GetVolume::new(refresh.id.clone()).secrets(refresh.secrets.clone());
                this.exists(&get).await?;
                if let Some(capability) = &refresh.capability
                    && let Some(reason) = this.refuses(&get, capability).await?
                {
                    // Unlike for NodeStageVolume, CSI's code for this is INVALID_ARGUMENT.
                    return Err(NodeError::Invalid(reason));
                }
                let path = path.ok_or_else(|| invalid_path(&request.volume_path))?;
                match &this.backend {
                    NodeBackend::Block(block) => block.expand(&refresh, path).await,
                    NodeBackend::Share(_) | NodeBackend::Target(_) => {
                        Err(NodeError::Unsupported("shares do not support node expansion"))
                    }
                }
            })
            .await?;
        Ok(v1::NodeExpandVolumeResponse { capacity_bytes: wire::bytes(capacity) })
    }

    /// Read-only, so it takes no lock.
    async fn volume_health(
        &self,
        request: v1::NodeGetVolumeHealthRequest,
    ) -> Result<v1::NodeGetVolumeHealthResponse, Status> {
        let health = match &self.backend {
            NodeBackend::Target(_) => None,
            NodeBackend::Block(_) | NodeBackend::Share(_) => Some(self.health()?),
        };
        let id = self.volume_id(request.volume_id)?;
        let get = GetVolumeHealth::new(id.clone())
            .publish_path(paths::optional_path("volume_publish_path", &request.volume_publish_path)?)
            .staging_path(paths::optional_path("staging_target_path", &request.staging_target_path)?);
        let issues = async {
            let issues = match (&self.backend, health) {
                (NodeBackend::Target(mounts), _) => match (mounts.volume_health(&get).await?, &self.health) {
                    // Not on this node: whether it exists is known to the backend, if this process has one.
                    (None, Some(health)) => health.volume_health(&get).await?,
                    (issues, _) => issues,
                },
                (_, Some(health)) => health.volume_health(&get).await?,
                (_, None) => Some(Vec::new()),
            };
            let mut issues = issues.ok_or_else(no_such_volume)?;
            if let NodeBackend::Block(block) = &self.backend {
                let paths = [get.publish_path, get.staging_path].into_iter().flatten().collect();
                issues.extend(block.mount_issues(&id, paths).await?);
            }
            Ok(issues)
        };
        let issues = issues.await.map_err(|error: NodeError| error.status(&id))?;
        Ok(v1::NodeGetVolumeHealthResponse { volume_health: Some(wire::health(&id, &issues)) })
    }

    async fn storage_health(
        &self,
        request: v1::NodeGetStorageHealthRequest,
    ) -> Result<v1::NodeGetStorageHealthResponse, Status> {
        let get = GetStorageHealth::new(request.secrets);
        let issues = match &self.backend {
            NodeBackend::Target(mounts) => mounts.storage_health(&get).await?,
            NodeBackend::Block(_) | NodeBackend::Share(_) => self.health()?.storage_health(&get).await?,
        };
        Ok(health::storage_health(issues))
    }

    async fn list_capabilities(
        &self,
        _: v1::NodeGetCapabilitiesRequest,
    ) -> Result<v1::NodeGetCapabilitiesResponse, Status> {
        use v1::node_service_capability::{Rpc, Type};

        let capability = |kind| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind })) };
        let capabilities = self.capabilities().into_iter().map(|kind| capability(kind.into())).collect();
        Ok(v1::NodeGetCapabilitiesResponse { capabilities })
    }

    async fn info(&self, _: v1::NodeGetInfoRequest) -> Result<v1::NodeGetInfoResponse, Status> {
        Ok(v1::NodeGetInfoResponse {
            node_id: self.info.node_id.clone(),
            max_volumes_per_node: self.info.max_volumes,
            accessible_topology: self.topology.clone().map(|segments| v1::Topology { segments }),
        })
    }

    fn volume_id(&self, id: String) -> Result<String, Status> {
        self.rules.id("volume_id", &id)?;
        Ok(id)
    }

    fn health(&self) -> Result<&dyn Health, Status> {
        self.health.as_deref().ok_or_else(|| Status::unimplemented("this driver does not report health"))
    }

    /// The backend to query about volumes; `None` if all that is known of a volume is in the request.
    fn volumes(&self) -> Option<&dyn Volumes> {
        self.volumes.as_deref().filter(|_| self.backend.stages())
    }

    fn check_stages(&self) -> Result<(), Status> {
        match self.backend.stages() {
            true => Ok(()),
            false => Err(Status::unimplemented(NOT_STAGED)),
        }
    }

    async fn exists(&self, get: &GetVolume) -> Result<(), NodeError> {
        match self.volumes() {
            Some(volumes) => volumes.get(get).await?.map(drop).ok_or_else(no_such_volume),
            None => Ok(()),
        }
    }
}

const NOT_STAGED: &str = "volumes of this driver are mounted by NodePublishVolume, without staging";

fn no_such_volume() -> NodeError {
    NodeError::NotFound("the volume does not exist".into())
}

fn invalid_path(path: &str) -> NodeError {
    NodeError::NotFound(format!("no volume can be at {path:?}: not an absolute path of a mount"))
}

fn publish_request(
    capability: &Capability,
    staging: PathBuf,
    target: PathBuf,
    read_only: bool,
    backend: &NodeBackend,
) -> Result<PublishRequest, NodeError> {
    let (volume_mode, fs) = match (&capability.access, backend) {
        (VolumeAccess::Block, _) => (VolumeMode::Block, None),
        (VolumeAccess::Mount(mount), NodeBackend::Block(_)) => {
            (VolumeMode::Filesystem, fs_type_of(&mount.fs_type)?)
        }
        (VolumeAccess::Mount(_), NodeBackend::Share(_) | NodeBackend::Target(_)) => {
            (VolumeMode::Filesystem, None)
        }
    };
    let read_only = read_only || capability.mode.is_reader_only();
    Ok(PublishRequest { staging, target, volume_mode, fs, access_mode: capability.mode, read_only })
}

/// Implements each method of the service with the named function.
macro_rules! node {
    ($($method:ident($request:ident) -> $response:ident = $function:ident;)*) => {
        #[tonic::async_trait]
        impl v1::node_server::Node for NodeService {
            $(async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                self.$function(request.into_inner()).await.map(Response::new)
            })*
        }
    };
}

node! {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse = stage;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse = unstage;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse = publish;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse = unpublish;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse = stats;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse = volume_health;
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse = storage_health;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse = expand;
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse = list_capabilities;
    node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse = info;
}
