//! `wharf nfs-server`: the agent beside an NFS server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use wharf_driver_nfs::agent::{self, Agent, LinuxQuotas, QuotaSupport, ServeAgentOptions, TlsFiles};

use crate::signal::stop_signal;

const EXPLANATION: &str = "\
An NFS client cannot set quotas. This agent can: run it as root on the machine whose kernel exports the directories, beside the NFS \
server. Then the NFS driver limits each new volume to its size, expansion raises the limit, and the capacity that the driver reports \
leaves out what is promised to volumes. Without the agent, a volume can grow until the share is full. Snapshots and clones are copied \
by the agent, on the file system itself.

The file system of an export must enforce project quotas, and the kernel must be Linux 5.14 or newer:
  xfs    mount -o prjquota …
  ext4   tune2fs -O quota,project DEVICE (unmounted), then mount -o prjquota …
Projects 1500000000 to 1999999999 belong to the agent; all others are not touched. ext4 does not limit root, so use root_squash \
or run pods as another user there.

--export is the directory that the parameter `share` of a StorageClass leads to, as this machine sees it.

Agent and driver authenticate each other with certificates. Use an authority only for this purpose: whoever has a certificate of \
--client-ca can limit and copy the directories of volumes. The files are read for each connection, so they can be renewed at \
any time. docs/driver-nfs.md shows how to create them.

Example:
  wharf nfs-server --export /srv/nfs/kubernetes \\
    --client-ca /etc/wharf/ca.pem --cert /etc/wharf/agent.pem --key /etc/wharf/agent.key
and for the controller of the NFS driver:
  wharf driver nfs … --server-agent nas.example.com=https://nas.example.com:9820 \\
    --agent-ca /etc/wharf/ca.pem --agent-cert /etc/wharf/driver.pem \\
    --agent-key /etc/wharf/driver.key

Check it from a machine with the driver's certificate:
  curl --cacert ca.pem --cert driver.pem --key driver.key https://nas.example.com:9820/v1/exports";

/// Enforce sizes and make copies for the NFS driver, on the machine that exports the directories
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct NfsServerArgs {
    /// Directory of this machine that is exported and holds volumes; can be repeated
    #[arg(long = "export", value_name = "DIR", required = true)]
    exports: Vec<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([0; 16], agent::PORT)))]
    listen: SocketAddr,
    /// Authority of the drivers' certificates, in PEM
    #[arg(long, value_name = "FILE")]
    client_ca: PathBuf,
    /// Certificate of this agent with its chain, in PEM, for the name by which drivers call it
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

pub(crate) async fn run(args: NfsServerArgs) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let agent = Arc::new(Agent::new(args.exports, Arc::new(LinuxQuotas)));
    for export in agent.describe() {
        let directory = export.directory.display();
        match (&export.problem, export.quota) {
            (Some(problem), _) => anyhow::bail!("export {directory} cannot be used: {problem}"),
            (None, QuotaSupport::Enforced) => {
                tracing::info!(%directory, share = ?export.share, "serving export")
            }
            (None, QuotaSupport::NotEnforced) => tracing::warn!(
                %directory,
                share = ?export.share,
                "serving export without quotas: use xfs or ext4, mounted with prjquota, on Linux 5.14 or newer"
            ),
        }
    }
    let listen = args.listen;
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("failed to listen on {listen}"))?;
    tracing::info!(%listen, "listening");
    let tls = TlsFiles { ca: args.client_ca, cert: args.cert, key: args.key };
    Ok(agent::serve(agent, ServeAgentOptions { listener, tls }, stop).await?)
}
