//! The driver behind its socket: name, capabilities, and instrumented calls.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Code, Response, Status};
use wharf_cluster::{Fence, Leadership};
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::v1::controller_service_capability::{self, rpc::Type as ControllerRpc};
use wharf_csi::v1::group_controller_client::GroupControllerClient;
use wharf_csi::v1::group_controller_service_capability::{self, rpc::Type as GroupRpc};
use wharf_csi::v1::node_service_capability::{self, rpc::Type as NodeRpc};
use wharf_csi::v1::plugin_capability::{self, service::Type as PluginService};
use wharf_csi::{Client, DeadlineChannel, go_error_text, v1};
use wharf_model::secret::redact;
use wharf_model::topology::Segments;

use crate::metrics::Metrics;

/// Retry interval while the driver is unavailable or not ready.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of the calls during discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A driver's name and capabilities, as it reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// Driver name.
    pub name: String,
    /// Driver capabilities.
    pub capabilities: Capabilities,
    /// Topology segments of this node; read only with one sidecar per node.
    pub node_topology: Segments,
}

/// The capabilities that a driver declares, one field each, for use in rules and test tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// CONTROLLER_SERVICE of the plugin.
    pub controller_service: bool,
    /// GROUP_CONTROLLER_SERVICE of the plugin.
    pub group_controller_service: bool,
    /// VOLUME_ACCESSIBILITY_CONSTRAINTS of the plugin.
    pub topology: bool,
    /// SNAPSHOT_METADATA_SERVICE of the plugin.
    pub snapshot_metadata: bool,
    /// CREATE_DELETE_VOLUME.
    pub create_delete_volume: bool,
    /// PUBLISH_UNPUBLISH_VOLUME.
    pub publish_unpublish_volume: bool,
    /// PUBLISH_READONLY.
    pub publish_readonly: bool,
    /// LIST_VOLUMES.
    pub list_volumes: bool,
    /// LIST_VOLUMES_PUBLISHED_NODES.
    pub list_volumes_published_nodes: bool,
    /// GET_CAPACITY.
    pub get_capacity: bool,
    /// CREATE_DELETE_SNAPSHOT.
    pub create_delete_snapshot: bool,
    /// LIST_SNAPSHOTS.
    pub list_snapshots: bool,
    /// GET_SNAPSHOT.
    pub get_snapshot: bool,
    /// CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT of the group controller.
    pub group_snapshot: bool,
    /// CLONE_VOLUME.
    pub clone_volume: bool,
    /// EXPAND_VOLUME of the controller.
    pub expand_volume: bool,
    /// MODIFY_VOLUME.
    pub modify_volume: bool,
    /// SINGLE_NODE_MULTI_WRITER of the controller.
    pub single_node_multi_writer: bool,
    /// VOLUME_CONDITION of the controller, which CSI 1.13 dropped.
    pub volume_condition: bool,
    /// GET_VOLUME.
    pub get_volume: bool,
    /// GET_VOLUME_HEALTH of the controller.
    pub get_volume_health: bool,
    /// LIST_VOLUME_HEALTH.
    pub list_volume_health: bool,
    /// EXPAND_VOLUME of the node.
    pub node_expand_volume: bool,
}

impl Capabilities {
    fn add_plugin(&mut self, capabilities: &[v1::PluginCapability]) {
        for capability in capabilities {
            let Some(plugin_capability::Type::Service(service)) = &capability.r#type else { continue };
            match service.r#type() {
                PluginService::ControllerService => self.controller_service = true,
                PluginService::GroupControllerService => self.group_controller_service = true,
                PluginService::VolumeAccessibilityConstraints => self.topology = true,
                PluginService::SnapshotMetadataService => self.snapshot_metadata = true,
                _ => {}
            }
        }
    }

    fn add_controller(&mut self, capabilities: &[v1::ControllerServiceCapability]) {
        for capability in capabilities {
            let Some(controller_service_capability::Type::Rpc(rpc)) = &capability.r#type else { continue };
            match rpc.r#type() {
                ControllerRpc::CreateDeleteVolume => self.create_delete_volume = true,
                ControllerRpc::PublishUnpublishVolume => self.publish_unpublish_volume = true,
                ControllerRpc::PublishReadonly => self.publish_readonly = true,
                ControllerRpc::ListVolumes => self.list_volumes = true,
                ControllerRpc::ListVolumesPublishedNodes => self.list_volumes_published_nodes = true,
                ControllerRpc::GetCapacity => self.get_capacity = true,
                ControllerRpc::CreateDeleteSnapshot => self.create_delete_snapshot = true,
                ControllerRpc::ListSnapshots => self.list_snapshots = true,
                ControllerRpc::GetSnapshot => self.get_snapshot = true,
                ControllerRpc::CloneVolume => self.clone_volume = true,
                ControllerRpc::ExpandVolume => self.expand_volume = true,
                ControllerRpc::ModifyVolume => self.modify_volume = true,
                ControllerRpc::VolumeCondition => self.volume_condition = true,
                ControllerRpc::GetVolume => self.get_volume = true,
                ControllerRpc::GetVolumeHealth => self.get_volume_health = true,
                ControllerRpc::ListVolumeHealth => self.list_volume_health = true,
                ControllerRpc::SingleNodeMultiWriter => self.single_node_multi_writer = true,
                _ => {}
            }
        }
    }

    fn add_group_controller(&mut self, capabilities: &[v1::GroupControllerServiceCapability]) {
        for capability in capabilities {
            let Some(group_controller_service_capability::Type::Rpc(rpc)) = &capability.r#type else {
                continue;
            };
            if rpc.r#type() == GroupRpc::CreateDeleteGetVolumeGroupSnapshot {
                self.group_snapshot = true;
            }
        }
    }

    fn add_node(&mut self, capabilities: &[v1::NodeServiceCapability]) {
        for capability in capabilities {
            let Some(node_service_capability::Type::Rpc(rpc)) = &capability.r#type else { continue };
            if rpc.r#type() == NodeRpc::ExpandVolume {
                self.node_expand_volume = true;
            }
        }
    }
}

/// Waits until the driver is ready, then reads its name and capabilities.
pub async fn discover(client: &Client) -> DriverInfo {
    let driver = Driver::discover(client, &Metrics::new(), false).await;
    (*driver.info).clone()
}

/// A client for the driver; cheap to clone.
#[derive(Clone)]
pub(crate) struct Driver {
    client: Client,
    metrics: Metrics,
    /// Calls are made only while this is open.
    fence: Option<Fence>,
    pub(crate) info: std::sync::Arc<DriverInfo>,
}

impl Driver {
    /// Waits until the driver is ready, then reads its name and capabilities, and with `on_this_node` also the
    /// topology of this node.
    pub(crate) async fn discover(client: &Client, metrics: &Metrics, on_this_node: bool) -> Self {
        let client = client.with_deadline(DISCOVERY_TIMEOUT);
        let mut response = None;
        let info = loop {
            match query_driver(&client, metrics, on_this_node).await {
                Ok(info) => break info,
                Err(status) => {
                    // Log each error once, not twice a second.
                    let reason = format!("{:?}: {}", status.code(), status.message());
                    if response.as_ref() != Some(&reason) {
                        tracing::warn!(error = reason, "driver is not ready; retrying");
                        response = Some(reason);
                    }
                    sleep(RETRY_INTERVAL).await;
                }
            }
        };
        metrics.set_driver_name(&info.name);
        Self { client, metrics: metrics.clone(), fence: None, info: std::sync::Arc::new(info) }
    }

    /// A driver that cannot be reached, for tests. Must be created within a tokio runtime.
    #[cfg(test)]
    pub(crate) fn unreachable(info: DriverInfo) -> Self {
        let client = Client::new(&"/nowhere/csi.sock".parse().unwrap());
        Self { client, metrics: Metrics::new(), fence: None, info: std::sync::Arc::new(info) }
    }

    /// For one role: its calls start only while it holds the lease, and are cancelled when it loses it.
    pub(crate) fn fenced(&self, leadership: Option<&Leadership>) -> Self {
        Self { fence: leadership.map(|leadership| leadership.fence().clone()), ..self.clone() }
    }

    /// Whether the driver answers and is ready.
    pub(crate) async fn probe(&self, deadline: Duration) -> Result<(), Status> {
        probe(&self.client.with_deadline(deadline), &self.metrics).await
    }

    /// Driver name.
    pub(crate) fn name(&self) -> &str {
        &self.info.name
    }

    /// Driver capabilities.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.info.capabilities
    }

    /// Calls the Controller service with a deadline. `method` is the RPC's name, such as `CreateVolume`.
    pub(crate) async fn controller<T, F>(
        &self,
        method: &'static str,
        deadline: Duration,
        call: impl FnOnce(ControllerClient<DeadlineChannel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = self.client.with_deadline(deadline);
        self.fenced_call("Controller", method, call(client.controller())).await
    }

    /// Calls the GroupController service with a deadline.
    pub(crate) async fn group_controller<T, F>(
        &self,
        method: &'static str,
        deadline: Duration,
        call: impl FnOnce(GroupControllerClient<DeadlineChannel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = self.client.with_deadline(deadline);
        self.fenced_call("GroupController", method, call(client.group_controller())).await
    }

    async fn fenced_call<T>(
        &self,
        service: &str,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let call = counted(&self.metrics, service, method, call);
        match &self.fence {
            None => call.await,
            Some(fence) => match fence.run(call).await {
                Some(response) => response,
                None => Err(Status::cancelled("this replica lost its lease")),
            },
        }
    }
}

/// A gRPC error as Go prints it, which is how upstream's events quote drivers, with the secrets of the call
/// redacted.
pub(crate) fn redacted_status_text(status: &Status, secrets: &BTreeMap<String, String>) -> String {
    go_error_text(status.code(), &redact(status.message(), secrets.values()))
}

async fn counted<T>(
    metrics: &Metrics,
    service: &str,
    method: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let started = Instant::now();
    let result = call.await;
    let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
    metrics.record_call(&format!("/csi.v1.{service}/{method}"), code, started.elapsed());
    result.map(Response::into_inner)
}

async fn probe(client: &Client, metrics: &Metrics) -> Result<(), Status> {
    let mut identity = client.identity();
    let ready = counted(metrics, "Identity", "Probe", identity.probe(v1::ProbeRequest {})).await?.ready;
    match ready {
        Some(false) => Err(Status::unavailable("the driver reports that it is not ready")),
        Some(true) | None => Ok(()),
    }
}

/// sidecars.md 1.0 "Readiness", without its exits.
async fn query_driver(client: &Client, metrics: &Metrics, on_this_node: bool) -> Result<DriverInfo, Status> {
    probe(client, metrics).await?;
    let mut identity = client.identity();
    let request = v1::GetPluginInfoRequest {};
    let name = counted(metrics, "Identity", "GetPluginInfo", identity.get_plugin_info(request)).await?.name;
    if name.is_empty() {
        return Err(Status::failed_precondition(
            "the driver has no name: GetPluginInfo returned an empty name",
        ));
    }
    let mut capabilities = Capabilities::default();
    let request = v1::GetPluginCapabilitiesRequest {};
    let call = identity.get_plugin_capabilities(request);
    capabilities.add_plugin(&counted(metrics, "Identity", "GetPluginCapabilities", call).await?.capabilities);
    if capabilities.controller_service {
        let mut controller = client.controller();
        let call = controller.controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {});
        let response = counted(metrics, "Controller", "ControllerGetCapabilities", call).await?;
        capabilities.add_controller(&response.capabilities);
    }
    if capabilities.group_controller_service {
        let mut groups = client.group_controller();
        let request = v1::GroupControllerGetCapabilitiesRequest {};
        let call = groups.group_controller_get_capabilities(request);
        let method = "GroupControllerGetCapabilities";
        let response = counted(metrics, "GroupController", method, call).await?;
        capabilities.add_group_controller(&response.capabilities);
    }
    let mut node = client.node();
    let call = node.node_get_capabilities(v1::NodeGetCapabilitiesRequest {});
    match counted(metrics, "Node", "NodeGetCapabilities", call).await {
        Ok(response) => capabilities.add_node(&response.capabilities),
        // The controller part of a driver may not implement the Node service.
        Err(status) if status.code() == Code::Unimplemented => {}
        Err(status) => return Err(status),
    }
    let mut place = Segments::new();
    if on_this_node {
        let call = node.node_get_info(v1::NodeGetInfoRequest {});
        let response = counted(metrics, "Node", "NodeGetInfo", call).await?;
        place = response.accessible_topology.map(|at| at.segments.into_iter().collect()).unwrap_or_default();
    }
    Ok(DriverInfo { name, capabilities, node_topology: place })
}

#[cfg(test)]
pub(crate) mod tests;
