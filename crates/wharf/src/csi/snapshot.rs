//! `wharf csi snapshot`: snapshots, and their allocated and changed blocks.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wharf_csi::v1;

use super::request::{PageArgs, key_value, map};
use super::{Session, message};
use crate::output::{Report, Table, or_dash};
use crate::size::{human_size, parse_size};

/// Create, inspect and delete snapshots
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take a snapshot; idempotent by name and volume (CreateSnapshot)
    Create(Create),
    /// Delete a snapshot; succeeds if it does not exist (DeleteSnapshot)
    Delete {
        /// ID of the snapshot
        snapshot: String,
    },
    /// List snapshots (ListSnapshots)
    List(List),
    /// Show one snapshot (GetSnapshot)
    Get {
        /// ID of the snapshot
        snapshot: String,
    },
    /// Show the allocated blocks (GetMetadataAllocated)
    Allocated {
        /// ID of the snapshot
        snapshot: String,
        #[command(flatten)]
        blocks: BlockArgs,
    },
    /// Show the blocks that changed between two snapshots (GetMetadataDelta)
    Delta {
        /// ID of the older snapshot
        base: String,
        /// ID of the newer snapshot
        target: String,
        #[command(flatten)]
        blocks: BlockArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the snapshot
    name: String,
    /// ID of the volume to snapshot
    #[arg(long, value_name = "VOLUME")]
    volume: String,
    /// Parameter, as in a VolumeSnapshotClass; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only snapshots of this volume
    #[arg(long, value_name = "VOLUME", default_value = "", hide_default_value = true)]
    volume: String,
    /// Only this snapshot
    #[arg(long, value_name = "SNAPSHOT", default_value = "", hide_default_value = true)]
    snapshot: String,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BlockArgs {
    /// Start at this offset
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    starting_offset: i64,
    /// Maximum number of blocks per message of the stream; 0 is the driver's choice
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_results: i32,
}

pub(super) async fn run(command: Command, session: &Session) -> anyhow::Result<Report> {
    match command {
        Command::Create(Create { name, volume, parameters }) => {
            let request = v1::CreateSnapshotRequest {
                source_volume_id: volume,
                name,
                secrets: session.secrets(),
                parameters: map(&parameters)?,
                accessibility_requirements: None,
            };
            let created = session.controller().create_snapshot(request).await?.into_inner();
            Ok(Report::object(created.snapshot.as_ref().map_or(json!({}), message::snapshot)))
        }
        Command::Delete { snapshot } => {
            let request =
                v1::DeleteSnapshotRequest { snapshot_id: snapshot.clone(), secrets: session.secrets() };
            session.controller().delete_snapshot(request).await?;
            Ok(Report::done(format!("snapshot {snapshot} deleted")))
        }
        Command::List(args) => list(args, session).await,
        Command::Get { snapshot } => {
            let request = v1::GetSnapshotRequest { snapshot_id: snapshot, secrets: session.secrets() };
            let found = session.controller().get_snapshot(request).await?.into_inner();
            Ok(Report::object(found.snapshot.as_ref().map_or(json!({}), message::snapshot)))
        }
        Command::Allocated { snapshot, blocks } => {
            let request = v1::GetMetadataAllocatedRequest {
                snapshot_id: snapshot,
                starting_offset: blocks.starting_offset,
                max_results: blocks.max_results,
                secrets: session.secrets(),
            };
            let mut stream = session.snapshot_metadata().get_metadata_allocated(request).await?.into_inner();
            let mut found = Blocks::default();
            while let Some(part) = stream.message().await? {
                found.add(part.block_metadata_type, part.volume_capacity_bytes, part.block_metadata);
            }
            Ok(found.report())
        }
        Command::Delta { base, target, blocks } => {
            let request = v1::GetMetadataDeltaRequest {
                base_snapshot_id: base,
                target_snapshot_id: target,
                starting_offset: blocks.starting_offset,
                max_results: blocks.max_results,
                secrets: session.secrets(),
            };
            let mut stream = session.snapshot_metadata().get_metadata_delta(request).await?.into_inner();
            let mut found = Blocks::default();
            while let Some(part) = stream.message().await? {
                found.add(part.block_metadata_type, part.volume_capacity_bytes, part.block_metadata);
            }
            Ok(found.report())
        }
    }
}

async fn list(args: List, session: &Session) -> anyhow::Result<Report> {
    let List { volume, snapshot, page } = args;
    let mut token = page.starting_token.clone().unwrap_or_default();
    let mut table = snapshot_table();
    let mut entries = Vec::new();
    let next_token = loop {
        let request = v1::ListSnapshotsRequest {
            max_entries: page.max_entries.unwrap_or_default(),
            starting_token: token.clone(),
            source_volume_id: volume.clone(),
            snapshot_id: snapshot.clone(),
            secrets: session.secrets(),
        };
        let response = session.controller().list_snapshots(request).await?.into_inner();
        for found in response.entries.iter().filter_map(|entry| entry.snapshot.as_ref()) {
            snapshot_row(&mut table, found);
            entries.push(json!({"snapshot": message::snapshot(found)}));
        }
        match page.next(&token, &response.next_token)? {
            Some(next) => token = next,
            None => break response.next_token,
        }
    };
    if !next_token.is_empty() {
        let more = format!("next token {next_token}");
        table.row(["(more)".into(), "-".into(), "-".into(), "-".into(), "-".into(), more]);
    }
    Ok(Report::list(json!({"entries": entries, "next_token": next_token}), table))
}

pub(super) fn snapshot_table() -> Table {
    Table::new(&["SNAPSHOT", "VOLUME", "SIZE", "CREATED", "READY", "GROUP"])
}

pub(super) fn snapshot_row(table: &mut Table, snapshot: &v1::Snapshot) {
    let created = snapshot.creation_time.as_ref();
    table.row([
        snapshot.snapshot_id.clone(),
        or_dash(snapshot.source_volume_id.clone()),
        human_size(snapshot.size_bytes),
        created.map_or_else(|| "-".to_owned(), |time| message::timestamp(time.seconds, 0)),
        snapshot.ready_to_use.to_string(),
        or_dash(snapshot.group_snapshot_id.clone()),
    ]);
}

/// Collects the messages of a block metadata stream.
#[derive(Debug, Default)]
struct Blocks {
    kind: i32,
    volume_capacity: i64,
    blocks: Vec<v1::BlockMetadata>,
}

impl Blocks {
    fn add(&mut self, kind: i32, volume_capacity: i64, blocks: Vec<v1::BlockMetadata>) {
        self.kind = kind;
        self.volume_capacity = volume_capacity;
        self.blocks.extend(blocks);
    }

    fn report(&self) -> Report {
        let mut table = Table::new(&["OFFSET", "BYTES", "SIZE"]);
        for block in &self.blocks {
            table.row([
                block.byte_offset.to_string(),
                block.size_bytes.to_string(),
                human_size(block.size_bytes),
            ]);
        }
        let json = json!({
            "block_metadata_type": message::block_type(self.kind),
            "volume_capacity_bytes": self.volume_capacity,
            "block_metadata": self.blocks.iter().map(message::block).collect::<Value>(),
        });
        Report::list(json, table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn stream_messages_are_merged_into_one_report() {
        let mut blocks = Blocks::default();
        blocks.add(2, 1 << 20, vec![v1::BlockMetadata { byte_offset: 0, size_bytes: 4096 }]);
        blocks.add(2, 1 << 20, vec![v1::BlockMetadata { byte_offset: 65536, size_bytes: 8192 }]);
        assert_eq!(
            blocks.report().render(Format::Table),
            "OFFSET  BYTES  SIZE\n0       4096   4KiB\n65536   8192   8KiB\n"
        );
        let json: Value = serde_json::from_str(&blocks.report().render(Format::Json)).unwrap();
        assert_eq!(json["block_metadata_type"], "VARIABLE_LENGTH");
        assert_eq!(json["block_metadata"][1]["byte_offset"], 65536);
    }
}
