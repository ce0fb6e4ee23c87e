//! `wharf apiserver`: runs the embedded Kubernetes API server until a stop signal; creates its backups and credentials.

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

const AFTER_HELP: &str = "\
A small Kubernetes API server for one machine. It stores claims, volumes, pods, secrets, leases and the other objects that \
storage needs durably in --data-dir. kubectl, the Wharf sidecar and other clients use it like the API server of a cluster. \
It has no dependencies: no etcd, no other process.

  wharf apiserver --data-dir /var/lib/wharf --kubeconfig-out ~/.kube/config
  kubectl get storageclasses

The server always uses TLS. It creates its own certificate authority in DIR/pki at the first start. Keep that directory \
secret. When the server is ready, it prints one line: `api URL`. /healthz, /livez and /readyz need no credentials.

Permissions are built in:
  admin       everything
  sidecar     what CSI drivers need; also granted to service accounts in kube-system and wharf
  node:NAME   what the pods of that node need

Create credentials for an identity:
  wharf apiserver kubeconfig --data-dir /var/lib/wharf \\
    --identity node:worker-1 --out worker-1.kubeconfig

See docs/apiserver.md.";

/// Run a Kubernetes API server for this machine
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ApiserverArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory for objects and keys; created if it does not exist
    #[arg(long, value_name = "DIR", required = true)]
    data_dir: Option<PathBuf>,
    /// Listen address; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Additional host name or IP address for the server's certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// Write an administrator's kubeconfig to this file, readable only by its owner
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Kubeconfig(KubeconfigArgs),
}

/// Write all objects to a file, while the server is stopped
///
/// The backup does not contain keys. Without DIR/pki, a restored server creates a new certificate authority, and clients
/// need new credentials.
#[derive(Debug, Args)]
struct BackupArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Restore a backup into a data directory
///
/// The directory must not contain objects yet. Clients that watched the old server must list again.
#[derive(Debug, Args)]
struct RestoreArgs {
    /// File that `wharf apiserver backup` wrote
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Data directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Create a kubeconfig for an administrator, a sidecar or a node
///
/// Credentials are valid for one year. To revoke them, create a new certificate authority: remove DIR/pki.
#[derive(Debug, Args)]
struct KubeconfigArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Identity of the credentials: admin, sidecar or node:NAME
    #[arg(long, value_name = "IDENTITY", default_value = "admin")]
    identity: IdentityArg,
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "https://127.0.0.1:6443")]
    server: String,
    /// File to write, readable only by its owner
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// An identity on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdentityArg(Identity);

impl FromStr for IdentityArg {
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
            _ => Err(format!(
                "{text:?} is not an identity: use admin, sidecar or node:NAME with a node's name"
            )),
        }
    }
}

pub(crate) async fn run(args: ApiserverArgs) -> anyhow::Result<()> {
    let ApiserverArgs { command, data_dir, listen, tls_san, kubeconfig_out } = args;
    match command {
        None => {
            // clap requires the flag.
            let data_dir = data_dir.context("--data-dir is missing")?;
            serve(&data_dir, listen, &tls_san, kubeconfig_out.as_deref()).await
        }
        Some(Command::Backup(BackupArgs { data_dir, to })) => {
            // Without keys this is not a server's directory, and opening the store would create an empty one there.
            Pki::open(&data_dir)?;
            let store = Store::open(&data_dir, store::Options::default())
                .with_context(|| format!("failed to open {}", data_dir.display()))?;
            let revision = store.backup(&to).await?;
            println!("{}: backed up all objects up to revision {revision}", to.display());
            Ok(())
        }
        Some(Command::Restore(RestoreArgs { from, data_dir })) => {
            let revision = Store::restore(&from, &data_dir)?;
            println!("{}: restored all objects up to revision {revision}", data_dir.display());
            Ok(())
        }
        Some(Command::Kubeconfig(KubeconfigArgs {
            data_dir,
            identity: IdentityArg(identity),
            server,
            out,
        })) => {
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
    // First, so that a signal during startup is not lost.
    let stopped = stop_signal()?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .with_context(|| format!("failed to create {}", data_dir.display()))?;
    // The store's lock excludes a second server, also from the keys.
    let store = Store::open(data_dir, store::Options::default())
        .with_context(|| format!("failed to open {}", data_dir.display()))?;
    let pki = Arc::new(Pki::open_or_create(data_dir, now())?);
    let server = Server::bind(listen).await?;
    let authority = pki.certificate_pem().to_owned();
    let options =
        rest::Options { base_url: server.url(), ca_certificate: authority, ..rest::Options::default() };
    let api = Api::new(store, pki.access()?, options);
    api.prepare().await.context("failed to create the initial namespaces")?;
    if let Some(out) = out {
        write_kubeconfig(&pki, &Identity::Admin, &server.url(), out)?;
    }
    {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "api {}", server.url())?;
        stdout.flush()?;
    }
    tracing::info!(url = server.url(), data_dir = %data_dir.display(), "serving API");
    let stop = CancellationToken::new();
    let serving = server.run(api.clone(), pki, names, stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = api.run() => anyhow::bail!("the object store closed unexpectedly"),
        () = stopped => stop.cancel(),
    }
    serving.await?;
    tracing::info!("stopped");
    Ok(())
}

fn write_kubeconfig(pki: &Pki, identity: &Identity, server: &str, out: &Path) -> anyhow::Result<()> {
    let text = pki.kubeconfig(identity, server, now())?;
    write_private(out, text.as_bytes()).with_context(|| format!("failed to write {}", out.display()))
}

pub(crate) fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn identities_are_parsed_or_refused() {
        for (text, identity) in [
            ("admin", Identity::Admin),
            ("sidecar", Identity::Sidecar),
            ("node:worker-1.example", Identity::Node("worker-1.example".into())),
        ] {
            assert_eq!(text.parse(), Ok(IdentityArg(identity)), "{text}");
        }
        for text in ["", "root", "node", "node:", "node:A b", "node:a/b", "system:node:a"] {
            assert!(text.parse::<IdentityArg>().is_err(), "{text}");
        }
    }

    #[derive(Debug, clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: ApiserverArgs,
    }

    #[test]
    fn data_dir_is_required_exactly_once() {
        let parse = |words: &[&str]| TestCli::try_parse_from([&["apiserver"], words].concat());
        assert!(parse(&["--data-dir", "d"]).unwrap().args.command.is_none());
        assert!(parse(&["kubeconfig", "--data-dir", "d", "--out", "f"]).unwrap().args.command.is_some());
        assert!(parse(&[]).is_err(), "no directory");
        assert!(parse(&["backup", "--to", "f"]).is_err(), "no directory");
        assert!(parse(&["--data-dir", "d", "backup", "--data-dir", "d", "--to", "f"]).is_err(), "both");
    }
}
