//! `wharf driver nfs`: takes csi-driver-nfs' flags and runs the driver until a stop signal.

mod objects;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use wharf_csi::Endpoint;
use wharf_driver::ServeOptions;
use wharf_driver_nfs::Config;
use wharf_driver_nfs::controller::ControllerOptions;
use wharf_driver_nfs::node::{InlineVolumes, NodeOptions};
use wharf_driver_nfs::parameters::OnDelete;
use wharf_driver_nfs::server::Servers;
use wharf_driver_nfs::worker::{Exports, WorkerLog, WorkerOptions, WorkerProgram};

use crate::nfs::AgentArgs;
use crate::signal::stop_signal;
use objects::ApiObjects;

const EXPLANATION: &str = "\
A volume is a directory on an export of an NFS server. The StorageClass names the server and the export:
  parameters:
    server: nas.example.com
    share: /export

One process is controller and node: run it on each node, and one with `wharf sidecar` as the controller (see deploy/nfs.yaml). The \
driver mounts by itself, without mount.nfs. Use the host's network: a mount belongs to the network in which it was made.

A server that does not answer blocks only calls for its own volumes, and each of these ends by its deadline. The driver \
deletes a directory only if its record on the share (.wharf) proves that it belongs to the volume.

Volumes of csi-driver-nfs (nfs.csi.k8s.io) keep working: docs/driver-nfs.md describes how to migrate a running cluster.

Example:
  wharf driver nfs --nodeid \"$NODE_NAME\" \\
    --endpoint unix:///var/lib/kubelet/plugins/csi-nfsplugin/csi.sock

SIGTERM and SIGINT stop the driver. Volumes stay mounted, and interrupted copies are repeated after the next start.";

/// Serve directories on NFS exports (nfs.csi.k8s.io)
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(super) struct Args {
    /// Socket to listen on; only root can reach it
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "unix:///var/lib/kubelet/plugins/csi-nfsplugin/csi.sock",
        value_parser = parse_endpoint
    )]
    endpoint: Endpoint,
    /// Name of this node [default: its host name]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    nodeid: String,
    /// Name of the driver
    #[arg(long, value_name = "NAME", default_value = wharf_driver_nfs::DRIVER_NAME)]
    drivername: String,
    /// Mode of the root of volumes whose mountPermissions are not set, such as 0777; 0 leaves the mode as it is
    #[arg(long, value_name = "MODE", default_value = "0", value_parser = parse_permissions)]
    mount_permissions: u32,
    /// Directory over which worker processes mount an export, each in its own mount namespace
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    working_mount_dir: PathBuf,
    /// What DeleteVolume does with the directory of a volume whose class does not set onDelete: delete, retain or archive
    #[arg(long, value_name = "POLICY", default_value = "", hide_default_value = true, value_parser = parse_on_delete)]
    default_ondelete_policy: OnDelete,
    /// Minutes for which the usage of a volume is served from memory
    #[arg(long, value_name = "MINUTES", default_value_t = 10, allow_negative_numbers = true)]
    vol_stats_cache_expire_in_minutes: i64,
    /// Allow inline volumes of pods from these servers, each SERVER or SERVER:/SHARE [default: none]. SERVER:/SHARE does not
    /// allow subDir, which could lead out of the share by a symlink
    #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
    enable_inline_volumes: Vec<String>,
    /// Before a lazy unmount, abort all requests to the server if it does not answer. Pods that use other volumes of the
    /// same export get I/O errors
    #[arg(long)]
    force_unmount: bool,
    /// Deadline of a mount in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    mount_timeout: u64,
    /// Deadline of one unmount attempt in seconds; then the driver checks whether the server answers
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    unmount_timeout: u64,
    /// Deadline of statistics and health checks of a volume in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    stats_timeout: u64,
    #[command(flatten)]
    agents: AgentArgs,
    /// Listen address of /metrics and /healthz, such as 127.0.0.1:9808 [default: not served]
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Kubeconfig file for labels and annotations in subDir, for mount options of volumes, and for the exports to recover at the start
    /// [default: KUBECONFIG, else the pod's service account]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", hide_env = true)]
    kubeconfig: Option<PathBuf>,
    /// Run in the network of a pod. Only for a driver that serves no node: mounts hang when the pod that made them is replaced
    #[arg(long)]
    allow_pod_network: bool,
    /// Addresses of the pod, from its status
    #[arg(long, value_name = "ADDRESSES", env = "POD_IP", default_value = "", hide = true)]
    pod_ip: String,
    /// Addresses of the node, from the pod's status
    #[arg(long, value_name = "ADDRESSES", env = "HOST_IP", default_value = "", hide = true)]
    host_ip: String,
    /// Ignored; accepted for existing manifests. Names of archives are unique
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    remove_archived_volume_path: Option<bool>,
    /// Ignored; accepted for existing manifests. The driver reads and writes archives by itself
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    use_tar_command_in_snapshot: Option<bool>,
    /// Ignored; accepted for existing manifests. The parameter format of a VolumeSnapshotClass selects the compression
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_snapshot_compression: Option<bool>,
    /// Ignored; accepted for existing manifests. Use --log-level
    #[arg(short = 'v', long = "v", value_name = "LEVEL")]
    verbosity: Option<String>,
}

pub(super) async fn run(args: Args, worker_log: WorkerLog) -> anyhow::Result<()> {
    let ignored = [
        (
            "--remove-archived-volume-path",
            args.remove_archived_volume_path.is_some(),
            "names of archives are unique",
        ),
        (
            "--use-tar-command-in-snapshot",
            args.use_tar_command_in_snapshot.is_some(),
            "archives are handled by the driver itself",
        ),
        (
            "--enable-snapshot-compression",
            args.enable_snapshot_compression.is_some(),
            "the parameter format of a VolumeSnapshotClass selects it",
        ),
        ("-v", args.verbosity.is_some(), "use --log-level"),
    ];
    for (flag, _, reason) in ignored.into_iter().filter(|(_, given, _)| *given) {
        tracing::warn!("{flag} is ignored: {reason}");
    }
    if !args.allow_pod_network {
        check_network(&args.pod_ip, &args.host_ip)?;
    }
    let stop = stop_signal()?;
    let node_id = node_id(args.nodeid)?;
    let agents = args.agents.access(&args.working_mount_dir)?;
    let objects = ApiObjects::new(args.kubeconfig, &args.drivername);
    let config = Config {
        driver_name: args.drivername,
        node_id,
        exports: Exports::Servers(Arc::new(Servers::default())),
        program: WorkerProgram::default().log(worker_log),
        workers: WorkerOptions { mount_dir: args.working_mount_dir, agents, ..WorkerOptions::default() },
        controller: ControllerOptions {
            default_on_delete: args.default_ondelete_policy,
            ..ControllerOptions::default()
        },
        node: NodeOptions {
            mount_permissions: Some(args.mount_permissions).filter(|mode| *mode > 0),
            inline: InlineVolumes::allow(args.enable_inline_volumes.iter().map(String::as_str)),
            force_unmount: args.force_unmount,
            usage_cache: cache_time(args.vol_stats_cache_expire_in_minutes),
            mount_timeout: Duration::from_secs(args.mount_timeout),
            unmount_timeout: Duration::from_secs(args.unmount_timeout),
            stats_timeout: Duration::from_secs(args.stats_timeout),
            ..NodeOptions::default()
        },
        objects: Some(Arc::new(objects)),
    };
    let options = ServeOptions { metrics_listen: args.metrics_listen };
    Ok(wharf_driver_nfs::driver(config)?.serve(&args.endpoint, options, stop).await?)
}

/// Refuses to run with another network than the node's: a mount belongs to the network of the process that made it, so all volumes of
/// the node would hang when the pod is replaced. Addresses that are not known, or of different families, prove nothing.
fn check_network(pod: &str, host: &str) -> anyhow::Result<()> {
    let addresses = |text: &str| -> Vec<IpAddr> {
        text.split(',').filter_map(|address| address.trim().parse().ok()).collect()
    };
    let (pods, hosts) = (addresses(pod), addresses(host));
    let comparable = pods.iter().any(|pod| hosts.iter().any(|host| pod.is_ipv4() == host.is_ipv4()));
    if comparable && !pods.iter().any(|address| hosts.contains(address)) {
        bail!(
            "the pod has its own network ({pod}; the node has {host}), and its mounts would hang when the pod is replaced: set \
             hostNetwork: true, or --allow-pod-network for a controller without a node service"
        );
    }
    Ok(())
}

/// csi-driver-nfs accepts an empty node ID; Kubernetes does not accept it from a driver.
fn node_id(flag: String) -> anyhow::Result<String> {
    if !flag.is_empty() {
        return Ok(flag);
    }
    let path = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(path).with_context(|| format!("read the host name from {path}"))?;
    Ok(name.trim().to_owned())
}

/// As csi-driver-nfs: less than one minute means ten.
fn cache_time(minutes: i64) -> Duration {
    let minutes = u64::try_from(minutes).ok().filter(|minutes| *minutes > 0).unwrap_or(10);
    Duration::from_secs(minutes.saturating_mul(60))
}

/// csi-driver-nfs takes `unix://tmp/csi.sock` for `/tmp/csi.sock`.
fn parse_endpoint(text: &str) -> anyhow::Result<Endpoint> {
    match text.strip_prefix("unix://") {
        Some(path) if !path.is_empty() && !path.starts_with('/') => Ok(format!("unix:///{path}").parse()?),
        _ => Ok(text.parse()?),
    }
}

/// Empty means delete.
fn parse_on_delete(text: &str) -> anyhow::Result<OnDelete> {
    Ok(OnDelete::parse(text)?.unwrap_or_default())
}

/// A number as in Go: the prefix selects the base, and a leading 0 is octal.
fn parse_permissions(text: &str) -> anyhow::Result<u32> {
    let lower = text.to_ascii_lowercase();
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let prefixed = prefixes.into_iter().find_map(|(prefix, base)| Some((lower.strip_prefix(prefix)?, base)));
    let (digits, base) = prefixed.filter(|_| lower != "0").unwrap_or((&lower, 10));
    match u32::from_str_radix(digits, base) {
        Ok(mode) if mode <= 0o7777 && !digits.starts_with('+') => Ok(mode),
        _ => bail!("use an octal mode with a leading 0, such as 0777, not {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_as_csi_driver_nfs_does() {
        for (text, mode) in [
            ("0", Some(0)),
            ("0777", Some(0o777)),
            ("0o750", Some(0o750)),
            ("0O750", Some(0o750)),
            ("511", Some(0o777)),
            ("0x1FF", Some(0o777)),
            ("0b111", Some(7)),
            ("777", Some(0o1411)),
            ("00", Some(0)),
        ] {
            assert_eq!(parse_permissions(text).ok(), mode, "{text}");
        }
        for text in ["", "rwx", "0888", "99999", "-1", "+7", "0+7", "0x", "0o"] {
            assert!(parse_permissions(text).is_err(), "{text}");
        }
        for (text, path) in [
            ("unix://tmp/csi.sock", "/tmp/csi.sock"),
            ("unix:///csi/csi.sock", "/csi/csi.sock"),
            ("/csi/csi.sock", "/csi/csi.sock"),
        ] {
            assert_eq!(parse_endpoint(text).unwrap().path(), std::path::Path::new(path));
        }
        assert!(parse_endpoint("tcp://127.0.0.1:9000").is_err() && parse_endpoint("unix://").is_err());
        let minute = Duration::from_secs(60);
        assert_eq!([cache_time(-1), cache_time(0), cache_time(3)], [10 * minute, 10 * minute, 3 * minute]);
    }

    // B27
    #[test]
    fn network_of_a_pod_is_refused() {
        for (pod, host, ok) in [
            ("10.0.0.5", "10.0.0.5", true),
            ("10.244.1.7", "10.0.0.5", false),
            ("", "", true),
            ("", "10.0.0.5", true),
            ("10.0.0.5", "", true),
            ("fd00::5", "10.0.0.5", true),
            ("fd00::5,10.0.0.5", "10.0.0.5", true),
            ("fd00::7,10.244.1.7", "10.0.0.5", false),
            ("FD00:0::5", "fd00::5", true),
        ] {
            let checked = check_network(pod, host);
            assert_eq!(checked.is_ok(), ok, "{pod} on {host}");
            if let Err(error) = checked {
                assert!(error.to_string().contains("hostNetwork: true"), "{error}");
            }
        }
    }

    /// The arguments of csi-driver-nfs' own manifests.
    #[test]
    fn flags_of_existing_manifests_are_accepted() {
        use clap::Parser;

        #[derive(Debug, Parser)]
        struct Program {
            #[command(flatten)]
            args: Args,
        }

        let parsed = Program::try_parse_from([
            "nfs",
            "-v=5",
            "--nodeid=n1",
            "--endpoint=unix:///csi/csi.sock",
            "--drivername=nfs.csi.k8s.io",
            "--mount-permissions=0",
            "--working-mount-dir=/tmp",
            "--default-ondelete-policy=delete",
            "--vol-stats-cache-expire-in-minutes=10",
            "--remove-archived-volume-path=true",
            "--use-tar-command-in-snapshot=false",
            "--enable-snapshot-compression",
            "--enable-inline-volumes=a,b:/x",
        ]);
        let args = parsed.unwrap().args;
        assert_eq!(args.verbosity.as_deref(), Some("5"));
        assert_eq!(args.enable_snapshot_compression, Some(true));
        assert_eq!(args.enable_inline_volumes, ["a", "b:/x"]);
    }
}
