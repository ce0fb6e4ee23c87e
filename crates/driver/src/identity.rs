//! The Identity service: who the driver is, what it serves, and whether it really can.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};

/// Whether the driver can do its work; if not, why.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Answers from what the builder was given.
#[derive(Clone)]
pub(crate) struct IdentityService {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) services: Vec<service::Type>,
    pub(crate) expansion: Option<volume_expansion::Type>,
    pub(crate) ready: Ready,
}

#[tonic::async_trait]
impl v1::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.version.clone(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let services = self.services.iter().map(|kind| Type::Service(Service { r#type: (*kind).into() }));
        let expansion = self
            .expansion
            .iter()
            .map(|kind| Type::VolumeExpansion(VolumeExpansion { r#type: (*kind).into() }));
        let capabilities =
            services.chain(expansion).map(|kind| v1::PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        match (self.ready)() {
            Ok(()) => Ok(Response::new(v1::ProbeResponse { ready: Some(true) })),
            Err(reason) => Err(Status::failed_precondition(reason)),
        }
    }
}
