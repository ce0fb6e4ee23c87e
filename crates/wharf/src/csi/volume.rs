//! `wharf csi volume` and `wharf csi capacity`: the volume calls of the Controller service.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wharf_csi::v1;

use super::request::{CapabilityArgs, PageArgs, SizeArgs, key_value, map, topology};
use super::{Session, message};
use crate::output::{Report, Table, or_dash};
use crate::size::human_size;

/// Create, inspect, change and delete volumes
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a volume; idempotent by name (CreateVolume)
    Create(Create),
    /// Delete a volume; succeeds if it does not exist (DeleteVolume)
    Delete {
        /// ID of the volume
        volume: String,
    },
    /// List volumes (ListVolumes)
    List(PageArgs),
    /// Show one volume (ControllerGetVolume)
    Get {
        /// ID of the volume
        volume: String,
    },
    /// Check whether a volume supports a capability (ValidateVolumeCapabilities)
    Validate(Validate),
    /// Attach a volume to a node (ControllerPublishVolume)
    Publish(Publish),
    /// Detach a volume from a node (ControllerUnpublishVolume)
    Unpublish {
        /// ID of the volume
        volume: String,
        /// ID of the node [default: all nodes]
        #[arg(default_value = "", hide_default_value = true)]
        node: String,
    },
    /// Expand a volume (ControllerExpandVolume)
    Expand(Expand),
    /// Change the mutable parameters of a volume (ControllerModifyVolume)
    Modify {
        /// ID of the volume
        volume: String,
        /// Parameter to change; may be repeated
        #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value, required = true)]
        parameters: Vec<(String, String)>,
    },
    /// Show the health of a volume, or of all volumes (ControllerGetVolumeHealth, ControllerListVolumeHealth)
    Health {
        /// ID of the volume [default: all volumes]
        volume: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the volume
    name: String,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    capability: CapabilityArgs,
    /// Parameter, as in a StorageClass; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,
    /// Mutable parameter, as in a VolumeAttributesClass; may be repeated
    #[arg(long = "mutable-parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    mutable_parameters: Vec<(String, String)>,
    /// Topology from which the volume must be accessible, as comma-separated segments; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE[,...]", value_parser = topology)]
    topologies: Vec<v1::Topology>,
    /// Restore this snapshot into the volume
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "from_volume")]
    from_snapshot: Option<String>,
    /// Clone this volume
    #[arg(long, value_name = "VOLUME")]
    from_volume: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// ID of the volume
    volume: String,
    #[command(flatten)]
    capability: CapabilityArgs,
    /// Volume context, as returned by CreateVolume; may be repeated
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = key_value)]
    context: Vec<(String, String)>,
    /// Parameter with which the volume was created; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// ID of the volume
    volume: String,
    /// ID of the node
    node: String,
    #[command(flatten)]
    capability: CapabilityArgs,
    /// Attach read-only
    #[arg(long)]
    read_only: bool,
    /// Volume context, as returned by CreateVolume; may be repeated
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = key_value)]
    context: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Expand {
    /// ID of the volume
    volume: String,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    capability: CapabilityArgs,
}

/// Show the available capacity (GetCapacity)
#[derive(Debug, Args)]
pub(crate) struct Capacity {
    #[command(flatten)]
    capability: CapabilityArgs,
    /// Parameter, as in a StorageClass; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,
    /// Topology to query, as comma-separated segments
    #[arg(long, value_name = "KEY=VALUE[,...]", value_parser = topology)]
    topology: Option<v1::Topology>,
}

pub(super) async fn run(command: Command, session: &Session) -> anyhow::Result<Report> {
    match command {
        Command::Create(create) => create.run(session).await,
        Command::Delete { volume } => {
            let request = v1::DeleteVolumeRequest { volume_id: volume.clone(), secrets: session.secrets() };
            session.controller().delete_volume(request).await?;
            Ok(Report::done(format!("volume {volume} deleted")))
        }
        Command::List(page) => list(page, session).await,
        Command::Get { volume } => {
            let request = v1::ControllerGetVolumeRequest { volume_id: volume };
            let found = session.controller().controller_get_volume(request).await?.into_inner();
            let status = found
                .status
                .as_ref()
                .map(|status| (status.published_node_ids.as_slice(), status.volume_condition.as_ref()));
            Ok(Report::object(message::volume_entry(found.volume.as_ref(), status)))
        }
        Command::Validate(validate) => validate.run(session).await,
        Command::Publish(publish) => publish.run(session).await,
        Command::Unpublish { volume, node } => {
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id: volume.clone(),
                node_id: node.clone(),
                secrets: session.secrets(),
            };
            session.controller().controller_unpublish_volume(request).await?;
            let node = if node.is_empty() { "all nodes" } else { &node };
            Ok(Report::done(format!("volume {volume} unpublished from {node}")))
        }
        Command::Expand(expand) => expand.run(session).await,
        Command::Modify { volume, parameters } => {
            let request = v1::ControllerModifyVolumeRequest {
                volume_id: volume.clone(),
                secrets: session.secrets(),
                mutable_parameters: map(&parameters)?,
            };
            session.controller().controller_modify_volume(request).await?;
            Ok(Report::done(format!("volume {volume} modified")))
        }
        Command::Health { volume, page } => health(volume, page, session).await,
    }
}

impl Create {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let source = match (self.from_snapshot, self.from_volume) {
            (Some(snapshot_id), _) => Some(Type::Snapshot(SnapshotSource { snapshot_id })),
            (None, Some(volume_id)) => Some(Type::Volume(VolumeSource { volume_id })),
            (None, None) => None,
        };
        let request = v1::CreateVolumeRequest {
            name: self.name,
            capacity_range: self.size.message(),
            volume_capabilities: vec![self.capability.message()],
            parameters: map(&self.parameters)?,
            secrets: session.secrets(),
            volume_content_source: source.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            accessibility_requirements: (!self.topologies.is_empty()).then(|| v1::TopologyRequirement {
                requisite: self.topologies.clone(),
                preferred: self.topologies.clone(),
            }),
            mutable_parameters: map(&self.mutable_parameters)?,
        };
        let created = session.controller().create_volume(request).await?.into_inner();
        Ok(Report::object(created.volume.as_ref().map_or(json!({}), message::volume)))
    }
}

impl Validate {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: self.volume,
            volume_context: map(&self.context)?,
            volume_capabilities: vec![self.capability.message()],
            parameters: map(&self.parameters)?,
            secrets: session.secrets(),
            mutable_parameters: Default::default(),
        };
        let response = session.controller().validate_volume_capabilities(request).await?.into_inner();
        Ok(Report::object(json!({"confirmed": response.confirmed.is_some(), "message": response.message})))
    }
}

impl Publish {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: self.volume.clone(),
            node_id: self.node.clone(),
            volume_capability: Some(self.capability.message()),
            readonly: self.read_only,
            secrets: session.secrets(),
            volume_context: map(&self.context)?,
        };
        let response = session.controller().controller_publish_volume(request).await?.into_inner();
        Ok(Report::object(json!({"publish_context": response.publish_context})))
    }
}

impl Expand {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: self.volume,
            capacity_range: self.size.message(),
            secrets: session.secrets(),
            volume_capability: Some(self.capability.message()),
        };
        let response = session.controller().controller_expand_volume(request).await?.into_inner();
        Ok(Report::object(json!({
            "capacity_bytes": response.capacity_bytes,
            "node_expansion_required": response.node_expansion_required,
        })))
    }
}

async fn list(page: PageArgs, session: &Session) -> anyhow::Result<Report> {
    let mut token = page.starting_token.clone().unwrap_or_default();
    let mut table = Table::new(&["VOLUME", "SIZE", "NODES", "SOURCE", "CONDITION"]);
    let mut entries = Vec::new();
    let next_token = loop {
        let request = v1::ListVolumesRequest {
            max_entries: page.max_entries.unwrap_or_default(),
            starting_token: token.clone(),
        };
        let response = session.controller().list_volumes(request).await?.into_inner();
        for entry in &response.entries {
            let volume = entry.volume.clone().unwrap_or_default();
            let status = entry.status.clone().unwrap_or_default();
            table.row([
                volume.volume_id.clone(),
                human_size(volume.capacity_bytes),
                or_dash(status.published_node_ids.join(",")),
                or_dash(source(&volume)),
                status.volume_condition.as_ref().map_or_else(|| "-".to_owned(), condition),
            ]);
            let status = entry
                .status
                .as_ref()
                .map(|status| (status.published_node_ids.as_slice(), status.volume_condition.as_ref()));
            entries.push(message::volume_entry(entry.volume.as_ref(), status));
        }
        match page.next(&token, &response.next_token)? {
            Some(next) => token = next,
            None => break response.next_token,
        }
    };
    if !next_token.is_empty() {
        table.row(["(more)".into(), "-".into(), "-".into(), "-".into(), format!("next token {next_token}")]);
    }
    Ok(Report::list(json!({"entries": entries, "next_token": next_token}), table))
}

fn source(volume: &v1::Volume) -> String {
    use v1::volume_content_source::Type;
    match volume.content_source.as_ref().and_then(|source| source.r#type.as_ref()) {
        Some(Type::Snapshot(snapshot)) => snapshot.snapshot_id.clone(),
        Some(Type::Volume(volume)) => volume.volume_id.clone(),
        None => String::new(),
    }
}

pub(super) fn condition(condition: &v1::VolumeCondition) -> String {
    let state = if condition.abnormal { "abnormal" } else { "normal" };
    if condition.message.is_empty() { state.to_owned() } else { format!("{state}: {}", condition.message) }
}

async fn health(volume: Option<String>, page: PageArgs, session: &Session) -> anyhow::Result<Report> {
    if let Some(volume_id) = volume {
        let request = v1::ControllerGetVolumeHealthRequest { volume_id, secrets: session.secrets() };
        let response = session.controller().controller_get_volume_health(request).await?.into_inner();
        return Ok(health_report(&response.volume_health.into_iter().collect::<Vec<_>>(), None));
    }
    let mut token = page.starting_token.clone().unwrap_or_default();
    let mut volumes = Vec::new();
    let next_token = loop {
        let request = v1::ControllerListVolumeHealthRequest {
            max_entries: page.max_entries.unwrap_or_default(),
            starting_token: token.clone(),
            secrets: session.secrets(),
        };
        let response = session.controller().controller_list_volume_health(request).await?.into_inner();
        volumes.extend(response.entries);
        match page.next(&token, &response.next_token)? {
            Some(next) => token = next,
            None => break response.next_token,
        }
    };
    Ok(health_report(&volumes, Some(next_token)))
}

/// One row per health issue, and one per healthy volume. As JSON, a single volume (`next_token` is `None`) is the
/// message itself, a listing its entries.
pub(super) fn health_report(volumes: &[v1::VolumeHealth], next_token: Option<String>) -> Report {
    let mut table = Table::new(&["VOLUME", "STATUS", "REASON", "MESSAGE"]);
    for volume in volumes {
        if volume.health_statuses.is_empty() {
            table.row([volume.volume_id.clone(), "HEALTHY".into(), "-".into(), "-".into()]);
        }
        for entry in &volume.health_statuses {
            table.row([
                volume.volume_id.clone(),
                message::health_status(entry.status),
                or_dash(entry.reason.clone()),
                or_dash(entry.message.clone()),
            ]);
        }
    }
    let mut entries: Vec<Value> = volumes.iter().map(message::volume_health).collect();
    let json = match next_token {
        Some(next_token) => json!({"entries": entries, "next_token": next_token}),
        None => json!({"volume_health": entries.pop()}),
    };
    Report::list(json, table)
}

pub(super) async fn capacity(args: Capacity, session: &Session) -> anyhow::Result<Report> {
    let request = v1::GetCapacityRequest {
        volume_capabilities: vec![args.capability.message()],
        parameters: map(&args.parameters)?,
        accessible_topology: args.topology,
    };
    let response = session.controller().get_capacity(request).await?.into_inner();
    Ok(Report::object(json!({
        "available_capacity": response.available_capacity,
        "maximum_volume_size": response.maximum_volume_size,
        "minimum_volume_size": response.minimum_volume_size,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn health_table_has_a_row_per_issue_and_per_healthy_volume() {
        let sick = v1::VolumeHealth {
            volume_id: "sick".into(),
            health_statuses: vec![v1::volume_health::VolumeHealthEntry {
                status: v1::VolumeHealthErrorType::Degraded.into(),
                reason: "PoolNearlyFull".into(),
                message: "5% left".into(),
            }],
        };
        let well = v1::VolumeHealth { volume_id: "well".into(), ..Default::default() };
        let text = health_report(&[sick.clone(), well], Some(String::new())).render(Format::Table);
        assert_eq!(
            text,
            "VOLUME  STATUS    REASON          MESSAGE\n\
             sick    DEGRADED  PoolNearlyFull  5% left\n\
             well    HEALTHY   -               -\n"
        );
        let json = health_report(&[sick], None).render(Format::Json);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["volume_health"]["health_statuses"][0]["status"], "DEGRADED");
    }

    #[test]
    fn condition_of_older_drivers_fits_in_one_cell() {
        let cell =
            |abnormal, message: &str| condition(&v1::VolumeCondition { abnormal, message: message.into() });
        assert_eq!(cell(false, ""), "normal");
        assert_eq!(cell(true, "disk gone"), "abnormal: disk gone");
    }
}
