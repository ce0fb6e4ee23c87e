//! `wharf apiserver`: the Kubernetes API of this machine until it is told to stop, its backups, and credentials for it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Identity, Pki, write_private};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::server::Server;
use wharf_apiserver::store::{self, Store};
use wharf_model::Time;

use crate::signal::stop_signal;

const EXPLANATION: &str = "\
A small Kubernetes API for one machine: claims, volumes, pods, secrets, leases and what else storage needs, kept durably
in --data-dir. kubectl, our sidecar and other clients use it as they use a cluster's. It needs nothing beside it.

  wharf apiserver --data-dir /var/lib/wharf --kubeconfig-out ~/.kube/config
  kubectl get storageclasses

It always speaks TLS, with an authority of its own that is made at the first start (DIR/pki; keep it as a secret).
When it is ready it prints a line: `api URL`. /healthz, /livez and /readyz answer everybody.

Who may do what is built in: administrators all, sidecars (and service accounts of kube-system and wharf) what
drivers need, a node's agent what its own pods need. Credentials for each:
  wharf apiserver kubeconfig --data-dir /var/lib/wharf --identity node:worker-1 --out worker-1.kubeconfig

See docs/apiserver.md.";

/// Run a Kubernetes API for this machine
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ApiserverArgs {
    #[command(subcommand)]
    tool: Option<Tool>,
    /// Directory for objects and keys; made if it is not there
    #[arg(long, value_name = "DIR", required = true)]
    data_dir: Option<PathBuf>,
    /// Address to listen on; port 0 for any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Another name or address by which clients know this server, for its certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// File for an administrator's kubeconfig, which only its owner can read
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Tool {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Kubeconfig(KubeconfigArgs),
}

/// Write all objects to a file, while the server does not run
///
/// Keys are not in it: without DIR/pki a restored server has a new authority, and clients need new credentials.
#[derive(Debug, Args)]
struct BackupArgs {
    /// Directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// File to write; there must be none yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Make a server's directory out of a backup
///
/// There must be no objects in it yet. Watchers of the old server begin anew.
#[derive(Debug, Args)]
struct RestoreArgs {
    /// File that `wharf apiserver backup` wrote
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Write credentials for an administrator, a sidecar or a node's agent
///
/// They hold for a year. There is no way to take them back but a new authority (remove DIR/pki).
#[derive(Debug, Args)]
struct KubeconfigArgs {
    /// Directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// For whom: admin, sidecar or node:NAME
    #[arg(long, value_name = "WHO", default_value = "admin")]
    identity: Who,
    /// Where the server is
    #[arg(long, value_name = "URL", default_value = "https://127.0.0.1:6443")]
    server: String,
    /// File to write, which only its owner can read
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// An identity as it is written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Who(Identity);

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            let byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
            !name.is_empty() && name.len() <= 253 && name.bytes().all(byte)
        };
        match (text, text.strip_prefix("node:")) {
            ("admin", _) => Ok(Self(Identity::Admin)),
            ("sidecar", _) => Ok(Self(Identity::Sidecar)),
            (_, Some(name)) if is_name(name) => Ok(Self(Identity::Node(name.to_owned()))),
            _ => Err(format!("{text:?} is not admin, sidecar or node:NAME with the name of a node")),
        }
    }
}

pub(crate) async fn run(args: ApiserverArgs) -> anyhow::Result<()> {
    let ApiserverArgs { tool, data_dir, listen, tls_san, kubeconfig_out } = args;
    match tool {
        None => {
            // clap has seen to it.
            let data_dir = data_dir.context("--data-dir is missing")?;
            serve(&data_dir, listen, &tls_san, kubeconfig_out.as_deref()).await
        }
        Some(Tool::Backup(BackupArgs { data_dir, to })) => {
            // A server has made its keys: without them this is not the directory of one, and opening the store would
            // make an empty one there.
            Pki::open(&data_dir)?;
            let store = Store::open(&data_dir, store::Options::default())
                .with_context(|| format!("open {}", data_dir.display()))?;
            let revision = store.backup(&to).await?;
            println!("{} has all objects up to revision {revision}", to.display());
            Ok(())
        }
        Some(Tool::Restore(RestoreArgs { from, data_dir })) => {
            let revision = Store::restore(&from, &data_dir)?;
            println!("{} has all objects up to revision {revision}", data_dir.display());
            Ok(())
        }
        Some(Tool::Kubeconfig(KubeconfigArgs { data_dir, identity: Who(identity), server, out })) => {
            let pki = Pki::open(&data_dir)?;
            write_kubeconfig(&pki, &identity, &server, &out)
        }
    }
}

async fn serve(
    data_dir: &Path,
    listen: SocketAddr,
    names: &[String],
    out: Option<&Path>,
) -> anyhow::Result<()> {
    // Before anything else: a signal that comes meanwhile must not be lost.
    let stopped = stop_signal()?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .with_context(|| format!("make {}", data_dir.display()))?;
    // Its lock keeps a second server out, also from the keys.
    let store = Store::open(data_dir, store::Options::default())
        .with_context(|| format!("open {}", data_dir.display()))?;
    let pki = Arc::new(Pki::open_or_make(data_dir, now())?);
    let server = Server::bind(listen).await?;
    let authority = pki.certificate_pem().to_owned();
    let options = rest::Options { base: server.url(), authority, ..rest::Options::default() };
    let api = Api::new(store, pki.access()?, options);
    api.prepare().await.context("make the first namespaces")?;
    if let Some(out) = out {
        write_kubeconfig(&pki, &Identity::Admin, &server.url(), out)?;
    }
    {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "api {}", server.url())?;
        stdout.flush()?;
    }
    tracing::info!(url = server.url(), data = %data_dir.display(), "serving");
    let stop = CancellationToken::new();
    let serving = server.run(api.clone(), pki, names, stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = api.run() => anyhow::bail!("the store has closed"),
        () = stopped => stop.cancel(),
    }
    serving.await?;
    tracing::info!("stopped");
    Ok(())
}

fn write_kubeconfig(pki: &Pki, identity: &Identity, server: &str, out: &Path) -> anyhow::Result<()> {
    let text = pki.kubeconfig(identity, server, now())?;
    write_private(out, text.as_bytes()).with_context(|| format!("write {}", out.display()))
}

pub(crate) fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn identities() {
        for (text, identity) in [
            ("admin", Identity::Admin),
            ("sidecar", Identity::Sidecar),
            ("node:worker-1.example", Identity::Node("worker-1.example".into())),
        ] {
            assert_eq!(text.parse(), Ok(Who(identity)), "{text}");
        }
        for text in ["", "root", "node", "node:", "node:A b", "node:a/b", "system:node:a"] {
            assert!(text.parse::<Who>().is_err(), "{text}");
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ApiserverArgs,
    }

    #[test]
    fn a_directory_is_asked_for_once() {
        let read = |words: &[&str]| Line::try_parse_from([&["apiserver"], words].concat());
        assert!(read(&["--data-dir", "d"]).unwrap().args.tool.is_none());
        assert!(read(&["kubeconfig", "--data-dir", "d", "--out", "f"]).unwrap().args.tool.is_some());
        assert!(read(&[]).is_err(), "no directory");
        assert!(read(&["backup", "--to", "f"]).is_err(), "no directory");
        assert!(read(&["--data-dir", "d", "backup", "--data-dir", "d", "--to", "f"]).is_err(), "both");
    }
}
