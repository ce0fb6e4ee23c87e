//! `wharf nfs`: tools for the NFS driver.

mod agents;

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use wharf_driver_nfs::controller::{
    Controller, ControllerOptions, Conversion, ConvertOptions, PersistentVolumeFacts,
};
use wharf_driver_nfs::server::Servers;
use wharf_driver_nfs::worker::{Exports, WorkerLog, WorkerOptions, WorkerProgram, Workers};

use crate::ExitStatus;
pub(crate) use agents::AgentArgs;

const ADOPT_EXPLANATION: &str = "\
Volumes that csi-driver-nfs created have no record on their share, so the driver mounts and expands them, but does not delete \
their directories. This command writes the records. It changes no PersistentVolume and no directory, and can be repeated.

A volume is adopted only if its handle and its attributes name the same directory, and the directory exists. Pass all \
PersistentVolumes of the cluster, of all drivers: a directory is never deleted if a PersistentVolume uses it, or one above or \
beneath it, that is not adopted in the same run. Adopt all volumes with one directory at once. Run it where the driver runs, \
because it mounts the shares:
  kubectl get pv -o json |
    kubectl exec -i -n kube-system deploy/csi-nfs-controller -c nfs -- wharf nfs adopt

If the driver runs with --server-agent, use the same flags for agents here: a directory can have the limit of an earlier volume, \
which only the agent knows, and expansion raises only a limit that is recorded.

Exit status: 0 if all volumes were adopted, 1 if some were not.";

const CONVERT_EXPLANATION: &str = "\
Reads PersistentVolumes and StorageClasses from standard input, and prints PersistentVolumes of this driver with the same names, \
claims and directories. What the StorageClass says about deletion (onDelete, archiveOnDelete) becomes part of the volume handle. The \
command changes nothing; other PersistentVolumes are ignored.

  kubectl get pv,storageclass -o json | wharf nfs convert --share /export >converted.json

docs/driver-nfs.md describes how to replace the old PersistentVolumes, which are immutable. Then run `wharf nfs adopt`, so that the \
volumes can be deleted.

Exit status: 0 if all volumes of the provisioner were converted, 1 if some were not.";

/// Tools for the NFS driver
#[derive(Debug, clap::Args)]
pub(crate) struct NfsArgs {
    #[command(subcommand)]
    command: NfsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NfsCommand {
    Adopt(AdoptArgs),
    Convert(ConvertArgs),
}

/// Write the records of volumes that csi-driver-nfs created, so that they can be deleted
#[derive(Debug, clap::Args)]
#[command(after_help = ADOPT_EXPLANATION)]
struct AdoptArgs {
    /// Name of the driver. Other PersistentVolumes are not adopted, but their directories are kept
    #[arg(long, value_name = "NAME", default_value = wharf_driver_nfs::DRIVER_NAME)]
    drivername: String,
    /// Directory over which worker processes mount an export, each in its own mount namespace
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    working_mount_dir: PathBuf,
    #[command(flatten)]
    agents: AgentArgs,
}

/// Print PersistentVolumes of this driver for those of nfs-subdir-external-provisioner
#[derive(Debug, clap::Args)]
#[command(after_help = CONVERT_EXPLANATION)]
struct ConvertArgs {
    /// The directory on the server that the provisioner uses: its NFS_PATH
    #[arg(long, value_name = "DIR")]
    share: String,
    /// Name of the provisioner: its PROVISIONER_NAME, and the field provisioner of its StorageClasses
    #[arg(long, value_name = "NAME", default_value = "k8s-sigs.io/nfs-subdir-external-provisioner")]
    provisioner: String,
    /// Name of this driver
    #[arg(long, value_name = "NAME", default_value = wharf_driver_nfs::DRIVER_NAME)]
    drivername: String,
}

/// `worker_log` is what worker processes log.
pub(crate) async fn run(args: NfsArgs, worker_log: WorkerLog) -> anyhow::Result<()> {
    let mut json = Vec::new();
    std::io::stdin().read_to_end(&mut json).context("read PersistentVolumes from standard input")?;
    match args.command {
        NfsCommand::Adopt(args) => adopt(args, worker_log, &json).await,
        NfsCommand::Convert(args) => convert(&args, &json),
    }
}

fn convert(args: &ConvertArgs, json: &[u8]) -> anyhow::Result<()> {
    let options =
        ConvertOptions { provisioner: &args.provisioner, share: &args.share, driver: &args.drivername };
    let conversion = Conversion::of_nfs_subdir(json, options)
        .context("standard input must be the output of `kubectl get pv,storageclass -o json`")?;
    println!("{:#}", conversion.list());
    for (name, error) in &conversion.refused {
        eprintln!("{name}: not converted: {error}");
    }
    let (converted, refused) = (conversion.volumes.len(), conversion.refused.len());
    eprintln!("{converted} of {} volumes converted", converted + refused);
    if refused > 0 {
        return Err(ExitStatus(1).into());
    }
    Ok(())
}

async fn adopt(args: AdoptArgs, worker_log: WorkerLog, json: &[u8]) -> anyhow::Result<()> {
    let volumes = PersistentVolumeFacts::from_list(json, &args.drivername)
        .context("standard input must be the output of `kubectl get pv -o json`")?;
    let agents = args.agents.access(&args.working_mount_dir)?;
    let options = WorkerOptions { mount_dir: args.working_mount_dir, agents, ..WorkerOptions::default() };
    let exports = Exports::Servers(Arc::new(Servers::default()));
    let workers = Workers::new(WorkerProgram::default().log(worker_log), exports, options);
    let controller = Controller::new(Arc::new(workers.clone()), None, ControllerOptions::default());
    let mut refused = 0_usize;
    for volume in &volumes {
        match controller.adopt(volume).await {
            Ok(()) if volume.kept_for.is_empty() => println!("{}: adopted", volume.name),
            Ok(()) => println!("{}: adopted, {}", volume.name, kept(volume)),
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

/// Why the directory of an adopted volume is never deleted, and how to change that before the adoption.
fn kept(volume: &PersistentVolumeFacts) -> String {
    const SHOWN: usize = 5;
    let mut others: Vec<&str> = volume.kept_for.iter().map(String::as_str).take(SHOWN).collect();
    if volume.kept_for.len() > SHOWN {
        others.push("…");
    }
    format!(
        "but its directory is never deleted: {} uses it, or one above or beneath it, and is not adopted with it",
        others.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the agent, the limit of an earlier volume would not be recorded, and no expansion would raise it.
    #[test]
    fn adoption_takes_the_agents_of_the_driver() {
        use clap::Parser;

        #[derive(Debug, Parser)]
        struct Program {
            #[command(flatten)]
            args: AdoptArgs,
        }

        let flags = ["--agent-ca=/none/ca", "--agent-cert=/none/cert", "--agent-key=/none/key"];
        let parse = |agents: &[&str], flags: &[&str]| {
            Program::try_parse_from([&["adopt"], agents, flags].concat()).map(|program| program.args.agents)
        };
        assert!(parse(&[], &[]).unwrap().access("/tmp".as_ref()).unwrap().is_empty());
        let agent = ["--server-agent=nas=https://nas:9820"];
        assert!(parse(&agent, &flags[..2]).is_err());
        // The certificates are read before the first volume.
        let error = parse(&agent, &flags).unwrap().access("/tmp".as_ref()).unwrap_err();
        assert!(format!("{error:#}").contains("/none/key"), "{error:#}");
    }
}
