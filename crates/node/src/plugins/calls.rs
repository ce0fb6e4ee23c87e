//! The plugin manager's questions, each with its deadline: to the plugin on its registration socket, and to the driver
//! behind it.

use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use wharf_csi::{Client, Endpoint, EndpointError, v1};

use super::node_info::write::WriteError;
use super::validate::Invalid;
use super::{NodeCapabilities, Plugin};

/// How long a plugin may take to say who it is; kubelet's ten seconds for the connection.
const GET_INFO: Duration = Duration::from_secs(10);
/// How long it may take to hear what came of it.
const NOTIFY: Duration = Duration::from_secs(5);
/// How long a driver may take to say its name.
const GET_NAME: Duration = Duration::from_secs(10);

/// Why a driver is not registered. Plugins are told, in the words that kubelet has for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    /// The plugin does not say who it is; it is not told.
    #[error("failed to get plugin info using RPC GetInfo at socket {path}: {}", said(.status))]
    Silent {
        /// The socket.
        path: String,
        /// Its answer.
        status: Status,
    },
    /// The socket cannot be called.
    #[error(transparent)]
    Socket(EndpointError),
    /// It is not for us.
    #[error("plugin validation failed with err: {0}")]
    Invalid(#[from] Invalid),
    /// Its driver cannot be called.
    #[error("plugin validation failed with err: {0}")]
    Endpoint(EndpointError),
    /// Its driver has no answer.
    #[error("plugin registration failed with err: {0}")]
    Ask(#[from] AskError),
    /// Node and CSINode do not know it.
    #[error("plugin registration failed with err: {0}")]
    Write(#[from] WriteError),
}

/// Why a driver's answers are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// A call failed.
    #[error("{call} of driver {driver}: {}", said(.status))]
    Call {
        /// Which.
        call: &'static str,
        /// Whose.
        driver: String,
        /// What it answered.
        status: Status,
    },
    /// It is another one.
    #[error("the driver at {endpoint} calls itself {found:?}, and was registered as {driver:?}")]
    Name {
        /// As it was registered.
        driver: String,
        /// As it calls itself.
        found: String,
        /// Where it is.
        endpoint: Endpoint,
    },
}

fn said(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn registration(path: &Path) -> Result<Client, EndpointError> {
    Ok(Client::new(&format!("unix:{}", path.display()).parse()?))
}

/// Who a plugin is.
pub(super) async fn get_info(path: &Path) -> Result<PluginInfo, RegisterError> {
    let client = registration(path).map_err(RegisterError::Socket)?.with_deadline(GET_INFO);
    let answer = client.registration().get_info(InfoRequest {}).await;
    let silent = |status| RegisterError::Silent { path: path.display().to_string(), status };
    Ok(answer.map_err(silent)?.into_inner())
}

/// Tells a plugin what came of it.
pub(super) async fn notify(path: &Path, outcome: Result<(), &RegisterError>) -> Result<(), Status> {
    let client = registration(path).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let error = outcome.err().map(|error| format!("RegisterPlugin error -- {error}"));
    let status = RegistrationStatus { plugin_registered: error.is_none(), error: error.unwrap_or_default() };
    client.with_deadline(NOTIFY).registration().notify_registration_status(status).await.map(drop)
}

/// Where a plugin's driver is; one that does not say is behind the same socket.
pub(super) fn endpoint(info: &PluginInfo, path: &Path) -> Result<Endpoint, RegisterError> {
    let text = match info.endpoint.as_str() {
        "" => format!("unix:{}", path.display()),
        endpoint => endpoint.to_owned(),
    };
    text.parse().map_err(RegisterError::Endpoint)
}

/// What a driver says of itself and of this node.
pub(super) async fn ask(plugin: &Plugin, verify_name: bool) -> Result<Plugin, AskError> {
    let failed = |call| {
        let driver = plugin.name.clone();
        move |status| AskError::Call { call, driver, status }
    };
    let client = plugin.client();
    let quick = client.with_deadline(GET_NAME);
    let identity = quick.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
    let identity = known(identity).map_err(failed("GetPluginInfo"))?;
    if let Some(identity) = &identity
        && verify_name
        && identity.name != plugin.name
    {
        return Err(AskError::Name {
            driver: plugin.name.clone(),
            found: identity.name.clone(),
            endpoint: plugin.endpoint.clone(),
        });
    }
    let node = client.node().node_get_info(v1::NodeGetInfoRequest {}).await;
    let node = node.map_err(failed("NodeGetInfo"))?.into_inner();
    let can = client.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await;
    let can = known(can).map_err(failed("NodeGetCapabilities"))?;
    Ok(Plugin {
        vendor_version: identity.map(|identity| identity.vendor_version).unwrap_or_default(),
        node_id: node.node_id,
        max_volumes: node.max_volumes_per_node,
        topology: node
            .accessible_topology
            .map(|place| place.segments.into_iter().collect())
            .unwrap_or_default(),
        capabilities: can.as_ref().map(NodeCapabilities::of).unwrap_or_default(),
        ..plugin.clone()
    })
}

/// An answer, or none from those who do not have the call. Kubelet does not need either of them to register.
fn known<T>(answer: Result<tonic::Response<T>, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(answer) => Ok(Some(answer.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(status),
    }
}
