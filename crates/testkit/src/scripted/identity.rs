//! The Identity service, as the options configure it.

use async_trait::async_trait;
use tonic::{Request, Response, Status};
use wharf_csi::v1::identity_server::Identity;
use wharf_csi::v1::plugin_capability::service::Type as ServiceType;
use wharf_csi::v1::plugin_capability::volume_expansion::Type as ExpansionType;
use wharf_csi::v1::plugin_capability::{Service, Type, VolumeExpansion};
use wharf_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

use super::{Call, ScriptedService};

#[async_trait]
impl Identity for ScriptedService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let response = GetPluginInfoResponse {
            name: self.options.name.clone(),
            vendor_version: version,
            ..Default::default()
        };
        Ok(Response::new(response))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: ServiceType| Type::Service(Service { r#type: kind.into() });
        let controller = self.options.capabilities.iter().any(|name| !name.is_empty());
        let topology = self.options.topology_key.is_some();
        let groups = self.options.group_capabilities.iter().any(|name| !name.is_empty());
        let expands = self.options.has("EXPAND_VOLUME");
        let capabilities = [
            controller.then(|| service(ServiceType::ControllerService)),
            groups.then(|| service(ServiceType::GroupControllerService)),
            topology.then(|| service(ServiceType::VolumeAccessibilityConstraints)),
            expands.then(|| Type::VolumeExpansion(VolumeExpansion { r#type: ExpansionType::Online.into() })),
        ];
        let capabilities =
            capabilities.into_iter().flatten().map(|kind| PluginCapability { r#type: Some(kind) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.call(Call::new("Probe"), |_| Ok(ProbeResponse { ready: Some(true) })).await
    }
}
