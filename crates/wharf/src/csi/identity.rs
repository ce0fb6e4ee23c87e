//! `wharf csi identity`: a driver's name, version, capabilities and readiness.

use clap::Subcommand;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use wharf_csi::v1;

use super::Session;
use super::message::named;
use crate::output::{Report, Table};

/// Show the driver's name, capabilities and readiness
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show name and version (GetPluginInfo)
    Info,
    /// Show the capabilities of all services of the driver
    Capabilities,
    /// Check whether the driver is ready (Probe)
    Probe,
}

pub(super) async fn run(command: Command, session: &Session) -> anyhow::Result<Report> {
    match command {
        Command::Info => {
            let info = session.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await?.into_inner();
            Ok(Report::object(json!({
                "name": info.name,
                "vendor_version": info.vendor_version,
                "manifest": info.manifest,
            })))
        }
        Command::Capabilities => capabilities(session).await,
        Command::Probe => {
            let ready = session.identity().probe(v1::ProbeRequest {}).await?.into_inner().ready;
            // By the specification, an unset field means ready.
            Ok(Report::object(json!({"ready": ready.unwrap_or(true)})))
        }
    }
}

async fn capabilities(session: &Session) -> anyhow::Result<Report> {
    let plugin =
        session.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await?.into_inner();
    let controller = session
        .controller()
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await
        .map(|response| response.into_inner().capabilities.iter().map(controller_capability).collect());
    let group = session
        .group_controller()
        .group_controller_get_capabilities(v1::GroupControllerGetCapabilitiesRequest {})
        .await
        .map(|response| response.into_inner().capabilities.iter().map(group_capability).collect());
    let node = session
        .node()
        .node_get_capabilities(v1::NodeGetCapabilitiesRequest {})
        .await
        .map(|response| response.into_inner().capabilities.iter().map(node_capability).collect());
    let services = [
        ("identity", Some(plugin.capabilities.iter().map(plugin_capability).collect())),
        ("controller", served(controller)?),
        ("group_controller", served(group)?),
        ("node", served(node)?),
    ];
    let mut json = Map::new();
    let mut table = Table::new(&["SERVICE", "CAPABILITY"]);
    for (service, declared) in services {
        let Some(declared) = declared else { continue };
        for capability in &declared {
            table.row([service.to_owned(), capability.clone()]);
        }
        json.insert(service.to_owned(), json!(declared));
    }
    Ok(Report::list(Value::Object(json), table))
}

/// `None` if the driver does not implement the service. Any other failure is an error.
fn served(response: Result<Vec<String>, Status>) -> Result<Option<Vec<String>>, Status> {
    match response {
        Ok(declared) => Ok(Some(declared)),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(status),
    }
}

fn plugin_capability(capability: &v1::PluginCapability) -> String {
    use v1::plugin_capability::{Type, service, volume_expansion};
    match &capability.r#type {
        Some(Type::Service(service)) => {
            named(service::Type::try_from(service.r#type).map(|kind| kind.as_str_name()), service.r#type)
        }
        Some(Type::VolumeExpansion(expansion)) => {
            let kind = volume_expansion::Type::try_from(expansion.r#type).map(|kind| kind.as_str_name());
            format!("VOLUME_EXPANSION_{}", named(kind, expansion.r#type))
        }
        None => "UNKNOWN".to_owned(),
    }
}

fn controller_capability(capability: &v1::ControllerServiceCapability) -> String {
    use v1::controller_service_capability::{Type, rpc};
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => {
            named(rpc::Type::try_from(rpc.r#type).map(|kind| kind.as_str_name()), rpc.r#type)
        }
        None => "UNKNOWN".to_owned(),
    }
}

fn group_capability(capability: &v1::GroupControllerServiceCapability) -> String {
    use v1::group_controller_service_capability::{Type, rpc};
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => {
            named(rpc::Type::try_from(rpc.r#type).map(|kind| kind.as_str_name()), rpc.r#type)
        }
        None => "UNKNOWN".to_owned(),
    }
}

pub(super) fn node_capability(capability: &v1::NodeServiceCapability) -> String {
    use v1::node_service_capability::{Type, rpc};
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => {
            named(rpc::Type::try_from(rpc.r#type).map(|kind| kind.as_str_name()), rpc.r#type)
        }
        None => "UNKNOWN".to_owned(),
    }
}
