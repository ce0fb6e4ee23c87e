//! `wharf nfs`: tools for the NFS driver.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use wharf_driver_nfs::controller::{Controller, ControllerOptions, PersistentVolumeFacts};
use wharf_driver_nfs::server::Servers;
use wharf_driver_nfs::worker::{Exports, WorkerOptions, WorkerProgram, Workers};

use crate::ExitStatus;

const EXPLANATION: &str = "\
Volumes that csi-driver-nfs created have no record on their share, so the driver mounts and expands them, but does not delete \
their directories. This command writes the records. It changes no PersistentVolume and no directory, and can be repeated.

A volume is adopted only if its handle and its attributes name the same directory, and the directory exists. Run it where the \
driver runs, because it mounts the shares:
  kubectl get pv -o json | kubectl exec -i -n kube-system deploy/csi-nfs-controller -c nfs -- wharf nfs adopt

Exit status: 0 if all volumes were adopted, 1 if some were not.";

/// Tools for the NFS driver
#[derive(Debug, clap::Args)]
pub(crate) struct NfsArgs {
    #[command(subcommand)]
    command: NfsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NfsCommand {
    Adopt(AdoptArgs),
}

/// Write the records of volumes that csi-driver-nfs created, so that they can be deleted
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
struct AdoptArgs {
    /// Name of the driver; other PersistentVolumes are ignored
    #[arg(long, value_name = "NAME", default_value = wharf_driver_nfs::DRIVER_NAME)]
    drivername: String,
    /// Directory over which worker processes mount an export, each in its own mount namespace
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    working_mount_dir: PathBuf,
}

pub(crate) async fn run(args: NfsArgs) -> anyhow::Result<()> {
    let NfsCommand::Adopt(args) = args.command;
    let mut json = Vec::new();
    std::io::stdin().read_to_end(&mut json).context("read PersistentVolumes from standard input")?;
    let volumes = PersistentVolumeFacts::from_list(&json, &args.drivername)
        .context("standard input must be the output of `kubectl get pv -o json`")?;
    let options = WorkerOptions { mount_dir: args.working_mount_dir, ..WorkerOptions::default() };
    let exports = Exports::Servers(Arc::new(Servers::default()));
    let workers = Workers::new(WorkerProgram::default(), exports, options);
    let controller = Controller::new(Arc::new(workers.clone()), None, ControllerOptions::default());
    let mut refused = 0_usize;
    for volume in &volumes {
        match controller.adopt(volume).await {
            Ok(()) => println!("{}: adopted", volume.name),
            Err(error) => {
                refused += 1;
                println!("{}: not adopted: {error}", volume.name);
            }
        }
    }
    workers.shutdown().await;
    println!("{} of {} volumes adopted", volumes.len() - refused, volumes.len());
    if refused > 0 {
        return Err(ExitStatus(1).into());
    }
    Ok(())
}
