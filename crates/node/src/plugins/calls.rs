//! gRPC calls of the plugin manager, each with its timeout: to the plugin on its registration socket, and to the driver
//! behind it.

use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use wharf_csi::{Client, Endpoint, EndpointError, v1};

use super::node_info::write::WriteError;
use super::validate::Invalid;
use super::{NodeCapabilities, Plugin};

/// Timeout of GetInfo. Kubelet waits ten seconds for the connection.
const GET_INFO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of NotifyRegistrationStatus.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of GetPluginInfo.
const GET_NAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a driver is not registered. Sent to the plugin, in kubelet's wording.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    /// GetInfo failed; the plugin is not notified.
    #[error("failed to get plugin info using RPC GetInfo at socket {path}: {}", describe(.status))]
    GetInfo {
        /// The registration socket.
        path: String,
        /// The response.
        status: Status,
    },
    /// The registration socket's path is not a valid endpoint.
    #[error(transparent)]
    Socket(EndpointError),
    /// The plugin's info was refused.
    #[error("plugin validation failed with err: {0}")]
    Invalid(#[from] Invalid),
    /// The driver's endpoint is invalid.
    #[error("plugin validation failed with err: {0}")]
    Endpoint(EndpointError),
    /// The driver could not be queried.
    #[error("plugin registration failed with err: {0}")]
    Query(#[from] QueryError),
    /// The entries in Node and CSINode could not be written.
    #[error("plugin registration failed with err: {0}")]
    Write(#[from] WriteError),
}

/// Why the driver's node info is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    /// A call failed.
    #[error("{call} failed for driver {driver}: {}", describe(.status))]
    Call {
        /// The RPC.
        call: &'static str,
        /// The driver.
        driver: String,
        /// The response.
        status: Status,
    },
    /// Another driver responds.
    #[error("the driver at {endpoint} reports the name {found:?}, but was registered as {driver:?}")]
    Name {
        /// The registered name.
        driver: String,
        /// The name from GetPluginInfo.
        found: String,
        /// The driver's endpoint.
        endpoint: Endpoint,
    },
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn registration(path: &Path) -> Result<Client, EndpointError> {
    Ok(Client::new(&format!("unix:{}", path.display()).parse()?))
}

/// Calls GetInfo on a registration socket.
pub(super) async fn get_info(path: &Path) -> Result<PluginInfo, RegisterError> {
    let client = registration(path).map_err(RegisterError::Socket)?.with_deadline(GET_INFO_TIMEOUT);
    let response = client.registration().get_info(InfoRequest {}).await;
    let get_info_failed = |status| RegisterError::GetInfo { path: path.display().to_string(), status };
    Ok(response.map_err(get_info_failed)?.into_inner())
}

/// Sends a plugin the result of its registration.
pub(super) async fn notify(path: &Path, outcome: Result<(), &RegisterError>) -> Result<(), Status> {
    let client = registration(path).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let error = outcome.err().map(|error| format!("RegisterPlugin error -- {error}"));
    let status = RegistrationStatus { plugin_registered: error.is_none(), error: error.unwrap_or_default() };
    client.with_deadline(NOTIFY_TIMEOUT).registration().notify_registration_status(status).await.map(drop)
}

/// The driver's endpoint; defaults to the registration socket if the plugin gives none.
pub(super) fn endpoint(info: &PluginInfo, path: &Path) -> Result<Endpoint, RegisterError> {
    let text = match info.endpoint.as_str() {
        "" => format!("unix:{}", path.display()),
        endpoint => endpoint.to_owned(),
    };
    text.parse().map_err(RegisterError::Endpoint)
}

/// Queries the driver's identity, node info and capabilities.
pub(super) async fn query(plugin: &Plugin, verify_name: bool) -> Result<Plugin, QueryError> {
    let failed = |call| {
        let driver = plugin.name.clone();
        move |status| QueryError::Call { call, driver, status }
    };
    let client = plugin.client();
    let short_deadline = client.with_deadline(GET_NAME_TIMEOUT);
    let identity = short_deadline.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
    let identity = optional(identity).map_err(failed("GetPluginInfo"))?;
    if let Some(identity) = &identity
        && verify_name
        && identity.name != plugin.name
    {
        return Err(QueryError::Name {
            driver: plugin.name.clone(),
            found: identity.name.clone(),
            endpoint: plugin.endpoint.clone(),
        });
    }
    let node = client.node().node_get_info(v1::NodeGetInfoRequest {}).await;
    let node = node.map_err(failed("NodeGetInfo"))?.into_inner();
    let capabilities = client.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await;
    let capabilities = optional(capabilities).map_err(failed("NodeGetCapabilities"))?;
    Ok(Plugin {
        vendor_version: identity.map(|identity| identity.vendor_version).unwrap_or_default(),
        node_id: node.node_id,
        max_volumes: node.max_volumes_per_node,
        topology: node
            .accessible_topology
            .map(|topology| topology.segments.into_iter().collect())
            .unwrap_or_default(),
        capabilities: capabilities.as_ref().map(NodeCapabilities::from_response).unwrap_or_default(),
        ..plugin.clone()
    })
}

/// The response, or `None` if the driver does not implement the call. Kubelet registers without either of these calls.
fn optional<T>(response: Result<tonic::Response<T>, Status>) -> Result<Option<T>, Status> {
    match response {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(status),
    }
}
