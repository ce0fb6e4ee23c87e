//! Create, delete, get, expand, capacity.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use wharf_driver::backend::{
    AvailableCapacity, BackendError, Capability, Capacity, CapacityQuery, Clones, CreateError, DeleteError,
    DeleteVolume, ExpandError, ExpandVolume, ExpandedVolume, Expansion, GetVolume, NewVolume, Volume,
    VolumeAccess, Volumes,
};

use super::errors::CallError;
use super::plan::plan;
use super::snapshots::check_source;
use super::{Controller, plain_server, unexpected};
use crate::handle::VolumeHandle;
use crate::options::combine;
use crate::parameters::{ClassParameters, ParameterError, VolumeAttributes};
use crate::share::{self, Deletion, ErrorKind, Request, Response, VolumeInfo};
use crate::template::needs_claim;
use crate::worker::Export;

#[async_trait]
impl Volumes for Controller {
    async fn create(&self, requested: &NewVolume) -> Result<Volume, CreateError> {
        let invalid = |error: ParameterError| CreateError::Invalid(error.to_string());
        let mut parameters = ClassParameters::parse(&requested.parameters).map_err(invalid)?;
        if needs_claim(&parameters.sub_dir) {
            self.read_claim(&mut parameters).await?;
        }
        let plan =
            plan(requested, &parameters, self.options.default_on_delete).map_err(CreateError::Invalid)?;
        if let Some(source) = &requested.source {
            check_source(source, &plan.export)?;
        }
        let response = self.call_with_job(&plan.export, Request::CreateVolume(plan.request)).await;
        match response.map_err(CallError::from)? {
            Response::CreateVolume(created) => {
                let created = created.map_err(CallError::from)?;
                tracing::info!(volume_handle = created.handle, limited = created.limited, "created volume");
                Ok(to_sdk_volume(&created))
            }
            other => Err(CallError::from(unexpected(&other)).into()),
        }
    }

    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        let location = match VolumeHandle::parse(&request.id).and_then(|handle| handle.location()) {
            Ok(location) => location,
            // Static handles can be any text, and a crafted one must not reach a share.
            Err(error) => {
                self.deletes_without_record.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    volume_handle = request.id,
                    %error,
                    "deleted nothing: the handle names no directory of a volume"
                );
                return Ok(());
            }
        };
        let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
        let delete = share::DeleteVolume {
            handle: request.id.clone(),
            default_on_delete: self.options.default_on_delete,
        };
        let response = self.call(&export, Request::DeleteVolume(delete)).await.map_err(CallError::from)?;
        match response {
            Response::DeleteVolume(deleted) => match deleted.map_err(CallError::from)? {
                Deletion::Done => {}
                Deletion::NoRecord => {
                    self.deletes_without_record.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        volume_handle = request.id,
                        %export,
                        path = %location.path,
                        "deleted nothing: the volume has no record on its share, so its directory stays if there is one; remove it \
                         by hand, or run `wharf nfs adopt` before such volumes are deleted"
                    );
                }
            },
            other => return Err(CallError::from(unexpected(&other)).into()),
        }
        self.purge(&export).await;
        Ok(())
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        if let Ok(location) = VolumeHandle::parse(&request.id).and_then(|handle| handle.location()) {
            let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
            if let Some(found) = self.find(&export, &request.id, Some(location.path)).await? {
                return Ok(Some(to_sdk_volume(&found)));
            }
        }
        // A static volume is what its attributes say.
        let known = VolumeAttributes::parse(&request.volume_context).is_ok();
        Ok(known.then(|| Volume { id: request.id.clone(), ..Volume::default() }))
    }

    fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
        matches!(capability.access, VolumeAccess::Block)
            .then(|| "block volume capability not supported".to_owned())
    }

    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        match ClassParameters::parse(parameters) {
            // ValidateVolumeCapabilities can come without parameters; CreateVolume requires them itself.
            Ok(_) | Err(ParameterError::Missing(_)) => None,
            Err(error) => Some(error.to_string()),
        }
    }
}

#[async_trait]
impl Expansion for Controller {
    async fn expand(&self, request: &ExpandVolume) -> Result<ExpandedVolume, ExpandError> {
        let id = &request.id;
        let missing = || ExpandError::NotFound(format!("there is no volume {id}"));
        // Without a required size, the limit is what the caller wants.
        let size = match (request.size.required, request.size.limit) {
            (0, Some(limit)) => limit,
            (required, _) => required,
        };
        let Ok(location) = VolumeHandle::parse(id).and_then(|handle| handle.location()) else {
            // A static volume, whose handle can be any text: its size is only in the PersistentVolume, as with csi-driver-nfs.
            return Ok(ExpandedVolume { capacity: size, node_expansion_required: false });
        };
        let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
        let expand = share::ExpandVolume { handle: id.clone(), size };
        let response = self.call(&export, Request::ExpandVolume(expand)).await.map_err(CallError::from)?;
        let capacity = match response {
            Response::ExpandVolume(Ok(expanded)) => expanded.size,
            Response::ExpandVolume(Err(error)) if error.kind == ErrorKind::NotFound => {
                // A volume of csi-driver-nfs that was not adopted: its size is only in the PersistentVolume, as before.
                let found = self.find(&export, id, Some(location.path)).await?;
                found.filter(|found| !found.recorded).ok_or_else(missing)?;
                size
            }
            Response::ExpandVolume(Err(error)) => return Err(CallError::from(error).into()),
            other => return Err(CallError::from(unexpected(&other)).into()),
        };
        if request.size.limit.is_some_and(|limit| capacity > limit) {
            let message = format!("volume {id} already has {capacity} bytes, and volumes cannot shrink");
            return Err(ExpandError::OutOfRange(message));
        }
        Ok(ExpandedVolume { capacity, node_expansion_required: false })
    }

    fn online(&self) -> bool {
        true
    }
}

#[async_trait]
impl Capacity for Controller {
    async fn capacity(&self, query: &CapacityQuery) -> Result<AvailableCapacity, BackendError> {
        let parameters = match ClassParameters::parse(&query.parameters) {
            Ok(parameters) => parameters,
            // Without a class there is no share to ask.
            Err(ParameterError::Missing(_)) => return Ok(AvailableCapacity::default()),
            Err(error) => return Err(BackendError::Internal(error.to_string())),
        };
        let options =
            combine([], &parameters.transport).map_err(|error| BackendError::Internal(error.to_string()))?;
        let export = Export::new(plain_server(&parameters.server), &parameters.share, &options);
        match self.call(&export, Request::Capacity).await? {
            Response::Capacity(capacity) => {
                let available = capacity.map_err(CallError::from)?.available;
                Ok(AvailableCapacity { available, ..AvailableCapacity::default() })
            }
            other => Err(unexpected(&other).into()),
        }
    }
}

impl Clones for Controller {}

impl Controller {
    /// Reads the labels and annotations that a template needs.
    async fn read_claim(&self, parameters: &mut ClassParameters) -> Result<(), CreateError> {
        let Some(objects) = &self.objects else { return Ok(()) };
        let (Some(namespace), Some(name)) =
            (&parameters.metadata.pvc_namespace, &parameters.metadata.pvc_name)
        else {
            let message =
                "subDir has labels or annotations: run the provisioner with --extra-create-metadata";
            return Err(CreateError::Invalid(message.to_owned()));
        };
        let unavailable =
            |reason| BackendError::Unavailable(format!("failed to read claim {namespace}/{name}: {reason}"));
        let claim = objects.claim(namespace, name).await.map_err(unavailable)?;
        let claim = claim.ok_or_else(|| unavailable("it does not exist".to_owned()))?;
        parameters.metadata.labels = Some(claim.labels);
        parameters.metadata.annotations = Some(claim.annotations);
        Ok(())
    }

    /// Reads a volume from its share.
    pub(super) async fn find(
        &self,
        export: &Export,
        handle: &str,
        path: Option<crate::path::SharePath>,
    ) -> Result<Option<VolumeInfo>, BackendError> {
        let get = share::GetVolume { handle: handle.to_owned(), path };
        match self.call(export, Request::GetVolume(get)).await? {
            Response::GetVolume(found) => Ok(found.map_err(CallError::from)?),
            other => Err(unexpected(&other).into()),
        }
    }
}

/// The capacity is 0, "unknown", as with csi-driver-nfs, if nothing enforces it.
fn to_sdk_volume(info: &VolumeInfo) -> Volume {
    Volume {
        id: info.handle.clone(),
        capacity: if info.limited { info.size } else { 0 },
        context: info.context.clone(),
        source: info.source.clone(),
        ..Volume::default()
    }
}
