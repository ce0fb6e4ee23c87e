//! `wharf csi node`: the calls of the Node service. The driver resolves the paths, so they must be valid in its
//! container too.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wharf_csi::v1;

use super::identity::node_capability;
use super::request::{CapabilityArgs, SizeArgs, key_value, map};
use super::volume::{condition, health_report};
use super::{Session, message};
use crate::output::{Report, Table, or_dash};
use crate::size::human_size;

/// Stage, publish, inspect and expand volumes on the driver's node
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show node ID, topology and volume limit (NodeGetInfo)
    Info,
    /// Show the capabilities of the Node service (NodeGetCapabilities)
    Capabilities,
    /// Mount a volume at a staging path of the node (NodeStageVolume)
    Stage(Stage),
    /// Unmount a volume from its staging path (NodeUnstageVolume)
    Unstage {
        /// ID of the volume
        volume: String,
        /// Staging path
        #[arg(long, value_name = "DIR")]
        staging_path: String,
    },
    /// Mount a volume at the target path of a workload (NodePublishVolume)
    Publish(Publish),
    /// Unmount a volume from its target path (NodeUnpublishVolume)
    Unpublish {
        /// ID of the volume
        volume: String,
        /// Target path
        #[arg(long, value_name = "PATH")]
        target_path: String,
    },
    /// Show the usage of bytes and inodes (NodeGetVolumeStats)
    Stats(MountedVolume),
    /// Show the health of a volume, or of the node's storage (NodeGetVolumeHealth, NodeGetStorageHealth)
    Health {
        /// ID of the volume [default: the node's storage]
        #[arg(requires = "path")]
        volume: Option<String>,
        /// Target path of the volume
        #[arg(long, value_name = "PATH", requires = "volume")]
        path: Option<String>,
        /// Staging path
        #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
        staging_path: String,
    },
    /// Expand the device and file system on the node (NodeExpandVolume)
    Expand(Expand),
}

#[derive(Debug, Args)]
pub(crate) struct Stage {
    /// ID of the volume
    volume: String,
    /// Staging path
    #[arg(long, value_name = "DIR")]
    staging_path: String,
    #[command(flatten)]
    capability: CapabilityArgs,
    #[command(flatten)]
    contexts: ContextArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// ID of the volume
    volume: String,
    /// Target path
    #[arg(long, value_name = "PATH")]
    target_path: String,
    /// Staging path, for drivers that stage volumes
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    staging_path: String,
    /// Publish read-only
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    capability: CapabilityArgs,
    #[command(flatten)]
    contexts: ContextArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ContextArgs {
    /// Volume context, as returned by CreateVolume; may be repeated
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = key_value)]
    context: Vec<(String, String)>,
    /// Publish context, as returned by ControllerPublishVolume; may be repeated
    #[arg(long = "publish-context", value_name = "KEY=VALUE", value_parser = key_value)]
    publish_context: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct MountedVolume {
    /// ID of the volume
    volume: String,
    /// Path at which the volume is published or staged
    #[arg(long, value_name = "PATH")]
    path: String,
    /// Staging path
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    staging_path: String,
}

#[derive(Debug, Args)]
pub(crate) struct Expand {
    #[command(flatten)]
    mounted: MountedVolume,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    capability: CapabilityArgs,
}

pub(super) async fn run(command: Command, session: &Session) -> anyhow::Result<Report> {
    match command {
        Command::Info => {
            let info = session.node().node_get_info(v1::NodeGetInfoRequest {}).await?.into_inner();
            Ok(Report::object(json!({
                "node_id": info.node_id,
                "max_volumes_per_node": info.max_volumes_per_node,
                "accessible_topology": info.accessible_topology.as_ref().map(message::topology),
            })))
        }
        Command::Capabilities => {
            let response =
                session.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await?.into_inner();
            let declared: Vec<String> = response.capabilities.iter().map(node_capability).collect();
            let mut table = Table::new(&["CAPABILITY"]);
            for capability in &declared {
                table.row([capability.clone()]);
            }
            Ok(Report::list(json!({"capabilities": declared}), table))
        }
        Command::Stage(stage) => stage.run(session).await,
        Command::Unstage { volume, staging_path } => {
            let request = v1::NodeUnstageVolumeRequest {
                volume_id: volume.clone(),
                staging_target_path: staging_path.clone(),
            };
            session.node().node_unstage_volume(request).await?;
            Ok(Report::done(format!("volume {volume} unstaged from {staging_path}")))
        }
        Command::Publish(publish) => publish.run(session).await,
        Command::Unpublish { volume, target_path } => {
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: volume.clone(),
                target_path: target_path.clone(),
            };
            session.node().node_unpublish_volume(request).await?;
            Ok(Report::done(format!("volume {volume} unpublished from {target_path}")))
        }
        Command::Stats(mounted) => stats(mounted, session).await,
        Command::Health { volume: Some(volume_id), path, staging_path } => {
            let request = v1::NodeGetVolumeHealthRequest {
                volume_id,
                volume_publish_path: path.unwrap_or_default(),
                staging_target_path: staging_path,
            };
            let response = session.node().node_get_volume_health(request).await?.into_inner();
            Ok(health_report(&response.volume_health.into_iter().collect::<Vec<_>>(), None))
        }
        Command::Health { volume: None, .. } => storage_health(session).await,
        Command::Expand(Expand { mounted, size, capability }) => {
            let request = v1::NodeExpandVolumeRequest {
                volume_id: mounted.volume,
                volume_path: mounted.path,
                capacity_range: size.message(),
                staging_target_path: mounted.staging_path,
                volume_capability: Some(capability.message()),
                secrets: session.secrets(),
            };
            let response = session.node().node_expand_volume(request).await?.into_inner();
            Ok(Report::object(json!({"capacity_bytes": response.capacity_bytes})))
        }
    }
}

impl Stage {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            publish_context: map(&self.contexts.publish_context)?,
            staging_target_path: self.staging_path.clone(),
            volume_capability: Some(self.capability.message()),
            secrets: session.secrets(),
            volume_context: map(&self.contexts.context)?,
        };
        session.node().node_stage_volume(request).await?;
        Ok(Report::done(format!("volume {} staged at {}", self.volume, self.staging_path)))
    }
}

impl Publish {
    async fn run(self, session: &Session) -> anyhow::Result<Report> {
        let request = v1::NodePublishVolumeRequest {
            volume_id: self.volume.clone(),
            publish_context: map(&self.contexts.publish_context)?,
            staging_target_path: self.staging_path,
            target_path: self.target_path.clone(),
            volume_capability: Some(self.capability.message()),
            readonly: self.read_only,
            secrets: session.secrets(),
            volume_context: map(&self.contexts.context)?,
        };
        session.node().node_publish_volume(request).await?;
        Ok(Report::done(format!("volume {} published at {}", self.volume, self.target_path)))
    }
}

async fn stats(mounted: MountedVolume, session: &Session) -> anyhow::Result<Report> {
    let request = v1::NodeGetVolumeStatsRequest {
        volume_id: mounted.volume,
        volume_path: mounted.path,
        staging_target_path: mounted.staging_path,
    };
    let response = session.node().node_get_volume_stats(request).await?.into_inner();
    Ok(stats_report(&response))
}

fn stats_report(response: &v1::NodeGetVolumeStatsResponse) -> Report {
    let mut table = Table::new(&["UNIT", "TOTAL", "USED", "AVAILABLE"]);
    for usage in &response.usage {
        let number = |n: i64| match usage.unit() {
            v1::volume_usage::Unit::Bytes => human_size(n),
            _ => n.to_string(),
        };
        let unit = usage.unit().as_str_name().to_owned();
        table.row([unit, number(usage.total), number(usage.used), number(usage.available)]);
    }
    let mut json = json!({"usage": response.usage.iter().map(message::usage).collect::<Value>()});
    if let Some(found) = &response.volume_condition {
        table.row(["CONDITION".into(), condition(found), String::new(), String::new()]);
        json["volume_condition"] = message::condition(found);
    }
    Report::list(json, table)
}

async fn storage_health(session: &Session) -> anyhow::Result<Report> {
    let request = v1::NodeGetStorageHealthRequest { secrets: session.secrets() };
    let response = session.node().node_get_storage_health(request).await?.into_inner();
    let mut table = Table::new(&["STATUS", "REASON", "MESSAGE"]);
    let mut entries = Vec::new();
    for entry in &response.backend_health {
        let status = message::storage_status(entry.status);
        table.row([status.clone(), or_dash(entry.reason.clone()), or_dash(entry.message.clone())]);
        entries.push(json!({"status": status, "reason": entry.reason, "message": entry.message}));
    }
    if entries.is_empty() {
        table.row(["HEALTHY".into(), "-".into(), "-".into()]);
    }
    Ok(Report::list(json!({"backend_health": entries}), table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn stats_print_readable_bytes_and_plain_inode_counts() {
        let response = v1::NodeGetVolumeStatsResponse {
            usage: vec![
                v1::VolumeUsage { available: 3 << 30, total: 4 << 30, used: 1 << 30, unit: 1 },
                v1::VolumeUsage { available: 90, total: 2000, used: 1910, unit: 2 },
            ],
            volume_condition: None,
        };
        assert_eq!(
            stats_report(&response).render(Format::Table),
            "UNIT    TOTAL  USED  AVAILABLE\nBYTES   4GiB   1GiB  3GiB\nINODES  2000   1910  90\n"
        );
        let json: Value = serde_json::from_str(&stats_report(&response).render(Format::Json)).unwrap();
        assert_eq!(
            json["usage"][0],
            json!({"unit": "BYTES", "total": 4i64 << 30, "used": 1 << 30, "available": 3i64 << 30})
        );
        assert!(json.get("volume_condition").is_none());
    }

    #[test]
    fn stats_include_the_condition_of_older_drivers() {
        let abnormal = v1::VolumeCondition { abnormal: true, message: "not mounted".into() };
        let response = v1::NodeGetVolumeStatsResponse { usage: vec![], volume_condition: Some(abnormal) };
        assert!(stats_report(&response).render(Format::Table).contains("abnormal: not mounted"));
    }
}
