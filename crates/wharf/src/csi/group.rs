//! `wharf csi group`: snapshots of several volumes, taken at the same time.

use clap::{Args, Subcommand};
use serde_json::json;
use wharf_csi::v1;

use super::request::{key_value, map};
use super::snapshot::{snapshot_row, snapshot_table};
use super::{Session, message};
use crate::output::Report;

/// Create, inspect and delete group snapshots
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take snapshots of several volumes at the same time (CreateVolumeGroupSnapshot)
    Create(Create),
    /// Show a group snapshot and its members (GetVolumeGroupSnapshot)
    Get(Group),
    /// Delete a group snapshot with its members; succeeds if it does not exist (DeleteVolumeGroupSnapshot)
    Delete(Group),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the group snapshot
    name: String,
    /// IDs of the volumes
    #[arg(required = true)]
    volumes: Vec<String>,
    /// Parameter, as in a VolumeGroupSnapshotClass; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Group {
    /// ID of the group snapshot
    group: String,
    /// IDs of its snapshots, which some drivers need
    snapshots: Vec<String>,
}

pub(super) async fn run(command: Command, session: &Session) -> anyhow::Result<Report> {
    match command {
        Command::Create(Create { name, volumes, parameters }) => {
            let request = v1::CreateVolumeGroupSnapshotRequest {
                name,
                source_volume_ids: volumes,
                secrets: session.secrets(),
                parameters: map(&parameters)?,
            };
            let created =
                session.group_controller().create_volume_group_snapshot(request).await?.into_inner();
            Ok(report(created.group_snapshot))
        }
        Command::Get(Group { group, snapshots }) => {
            let request = v1::GetVolumeGroupSnapshotRequest {
                group_snapshot_id: group,
                snapshot_ids: snapshots,
                secrets: session.secrets(),
            };
            let found = session.group_controller().get_volume_group_snapshot(request).await?.into_inner();
            Ok(report(found.group_snapshot))
        }
        Command::Delete(Group { group, snapshots }) => {
            let request = v1::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: group.clone(),
                snapshot_ids: snapshots,
                secrets: session.secrets(),
            };
            session.group_controller().delete_volume_group_snapshot(request).await?;
            Ok(Report::done(format!("group snapshot {group} deleted")))
        }
    }
}

fn report(group: Option<v1::VolumeGroupSnapshot>) -> Report {
    let mut table = snapshot_table();
    for snapshot in group.iter().flat_map(|group| &group.snapshots) {
        snapshot_row(&mut table, snapshot);
    }
    Report::list(group.as_ref().map_or(json!({}), message::group_snapshot), table)
}
