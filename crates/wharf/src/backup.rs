//! `wharf backup …`: full and incremental backups of block volumes from their snapshots, and their restore.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wharf_backup::{MetadataService, ServiceOptions};

const AFTER_HELP: &str = "\
The data is read from --data: the block device of a volume that was restored from the snapshot, or a file with the \
snapshot's bytes. The snapshot metadata service (wharf snapshot-metadata, or upstream's external-snapshot-metadata) reports \
which blocks to read.

Examples:
  wharf backup create --server sms.backup.svc:50051 --ca-file ca.pem --token-file token \\
    --namespace shop --snapshot monday --handle snap-1 --data /dev/monday monday.backup
  wharf backup create … --snapshot tuesday --handle snap-2 --data /dev/tuesday \\
    --base monday.backup tuesday.backup
  wharf backup restore --onto /dev/new monday.backup tuesday.backup";

/// Create full and incremental backups of block volumes from their snapshots, and restore them
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Back up a snapshot: all of its data, or the changes since an earlier backup
    Create {
        #[command(flatten)]
        service: ServiceArgs,
        /// Snapshot handle of the driver (status.snapshotHandle of the VolumeSnapshotContent)
        #[arg(long, value_name = "HANDLE")]
        handle: String,
        /// Block device or file with the snapshot's data
        #[arg(long, value_name = "PATH")]
        data: PathBuf,
        /// Earlier backup of the same volume; only the changes since then are backed up
        #[arg(long, value_name = "FILE")]
        base: Option<PathBuf>,
        /// Backup file to create; it must not exist
        #[arg(value_name = "FILE")]
        output: PathBuf,
    },
    /// Restore a full backup and its incremental backups to a block device or file
    Restore {
        /// Block device or file to overwrite; the file is created if it does not exist. Existing data is lost
        #[arg(long, value_name = "PATH")]
        onto: PathBuf,
        /// Backups in order, the full one first
        #[arg(required = true, value_name = "FILE")]
        backups: Vec<PathBuf>,
    },
}

/// Connection to the service, and the snapshot to query.
#[derive(Debug, Args)]
struct ServiceArgs {
    /// Address of the service, such as snapshot-metadata.backup.svc:50051
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// CA certificates of the service, in PEM
    #[arg(long, value_name = "FILE")]
    ca_file: PathBuf,
    /// File with a token for the audience of the driver's SnapshotMetadataService; read again when a stream is resumed
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Namespace of the snapshot
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// Name of the VolumeSnapshot
    #[arg(long, value_name = "NAME")]
    snapshot: String,
}

/// Runs the command. Blocking calls are fine: nothing else runs in this process.
pub(crate) async fn run(args: BackupArgs) -> anyhow::Result<()> {
    match args.command {
        Command::Create { service, handle, data, base, output } => {
            let ServiceArgs { server, ca_file, token_file, namespace, snapshot } = service;
            let options = ServiceOptions { server, ca_file, token_file, namespace, snapshot };
            let service = MetadataService::new(options)?;
            let created = wharf_backup::create(&service, handle, &data, base.as_deref(), &output).await?;
            println!(
                "{}: backed up {} of {} bytes, sha256 {}",
                output.display(),
                created.bytes,
                created.volume_size,
                created.sha256
            );
        }
        Command::Restore { onto, backups } => {
            let size = wharf_backup::restore(&onto, &backups)?;
            println!("{}: restored {size} bytes from {} backups", onto.display(), backups.len());
        }
    }
    Ok(())
}
