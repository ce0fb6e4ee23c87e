//! `wharf driver digitalocean`: takes csi-digitalocean's flags and runs the driver until a stop signal.

mod flags;
mod orphans;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use http::StatusCode;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use wharf_csi::{Endpoint, HttpPage, serve_pages};
use wharf_driver::ServeOptions;
use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::{Account, AccountStatus, Config, ControllerBackend};
use wharf_linux::Linux;

use crate::signal::stop_signal;
use flags::{ApiArgs, MetadataNeeds};
use orphans::OrphansArgs;

const AFTER_HELP: &str = "\
The driver has two modes:
  controller   with an API token; one per cluster, together with `wharf sidecar`
  node         without a token; one on each droplet
With --droplet-id, a controller also serves its node.

If --region or --droplet-id is not set, the driver reads it from the droplet's metadata service. A controller with --region \
can run outside DigitalOcean.

The token comes from --token-file (read for each request, so that you can rotate it) or from the environment variable \
DIGITALOCEAN_ACCESS_TOKEN. Avoid --token: every user of the machine can read it.

Example of a controller and a node (see deploy/digitalocean.yaml):
  wharf driver digitalocean --token-file /etc/digitalocean/access-token \\
    --endpoint unix:///csi/csi.sock
  wharf driver digitalocean \\
    --endpoint unix:///var/lib/kubelet/plugins/dobs.csi.digitalocean.com/csi.sock

Volumes of csi-digitalocean (dobs.csi.digitalocean.com) keep working: docs/driver-digitalocean.md describes how to migrate \
a running cluster.";

/// Serve DigitalOcean Block Storage (dobs.csi.digitalocean.com)
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    api: ApiArgs,
    /// Socket to listen on; only root can reach it
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "unix:///var/lib/kubelet/plugins/dobs.csi.digitalocean.com/csi.sock"
    )]
    endpoint: Endpoint,
    /// ID of this droplet, which is also the CSI node ID [default for a node: from the metadata service]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    droplet_id: Option<u64>,
    /// Name of the driver; com.digitalocean.csi.dobs for volumes from before CSI 0.3
    #[arg(long, value_name = "NAME", default_value = wharf_driver_digitalocean::DRIVER_NAME)]
    driver_name: String,
    /// Tag for new volumes, and for existing volumes when they are attached
    #[arg(long, value_name = "TAG")]
    do_tag: Option<String>,
    /// Maximum number of volumes per droplet; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(i64).range(0..))]
    volume_limit: i64,
    /// Listen address of /health, such as :9809; it reports whether the controller can use the API
    #[arg(long, value_name = "ADDRESS", value_parser = flags::parse_address)]
    debug_addr: Option<SocketAddr>,
    /// Listen address of /metrics and /healthz, such as 127.0.0.1:9808 [default: not served]
    #[arg(long, value_name = "ADDRESS", value_parser = flags::parse_address)]
    metrics_listen: Option<SocketAddr>,
    /// Ignored; accepted for existing manifests. Listings are always complete
    #[arg(long, value_name = "N")]
    default_volumes_page_size: Option<u32>,
    /// Ignored; accepted for existing manifests. Devices are always validated before use
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    validate_attachment: Option<bool>,
    /// Print the version
    #[arg(long)]
    version: bool,
    /// Directory of the device links
    #[arg(long, value_name = "DIR", default_value = "/dev/disk/by-id", hide = true)]
    device_dir: PathBuf,
    /// Directory for the node's volume records [default: /var/lib/kubelet/plugins/<driver name>/volumes]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Orphans(OrphansArgs),
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        command,
        api,
        endpoint,
        droplet_id,
        driver_name,
        do_tag,
        volume_limit,
        debug_addr,
        metrics_listen,
        default_volumes_page_size,
        validate_attachment,
        version,
        device_dir,
        state_dir,
    } = args;
    if let Some(Command::Orphans(args)) = command {
        return orphans::run(args).await;
    }
    if version {
        println!("wharf {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    if default_volumes_page_size.is_some() {
        tracing::warn!("--default-volumes-page-size is ignored: listings are always complete");
    }
    if validate_attachment.is_some() {
        tracing::warn!("--validate-attachment is ignored: devices are always validated");
    }
    let stop = stop_signal()?;
    tokio::pin!(stop);
    let client = api.client()?;
    let needs = MetadataNeeds::new(client.is_some(), droplet_id, api.region.as_deref());
    let location = tokio::select! {
        location = api.location(needs, droplet_id) => location?,
        // A metadata service that hangs must not delay the stop.
        () = &mut stop => return Ok(()),
    };
    let state_dir =
        state_dir.unwrap_or_else(|| format!("/var/lib/kubelet/plugins/{driver_name}/volumes").into());
    let account = client.clone().map(Account::new);
    let cloud = client.zip(account.clone()).map(|(client, account)| ControllerBackend {
        client,
        account,
        polling: PollingOptions::default(),
    });
    let config = Config {
        driver_name,
        region: location.region,
        droplet: location.droplet,
        volume_limit,
        tag: do_tag.filter(|tag| !tag.is_empty()),
        device_dir,
        state_dir,
    };
    let driver = wharf_driver_digitalocean::driver(Arc::new(Linux::new()), cloud, config)?;
    let _account_watch =
        account.clone().map(|account| AbortOnDropHandle::new(tokio::spawn(log_account_status(account))));
    let _health = match debug_addr.zip(account) {
        Some((address, account)) => {
            Some(AbortOnDropHandle::new(tokio::spawn(health(address, account).await?)))
        }
        None => None,
    };
    Ok(driver.serve(&endpoint, ServeOptions { metrics_listen }, stop).await?)
}

/// How often the account's status is checked, independent of /health.
const ACCOUNT_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Logs the account's status whenever it changes.
async fn log_account_status(account: Account) {
    let mut logged = AccountStatus::Good;
    loop {
        let status = account.check().await;
        if status != logged {
            match &status {
                AccountStatus::Good => tracing::info!("account is usable"),
                other => tracing::warn!(status = ?other, "account is not usable"),
            }
            logged = status;
        }
        tokio::time::sleep(ACCOUNT_CHECK_INTERVAL).await;
    }
}

/// Serves /health: an empty 200, or 500 with the reason.
async fn health(address: SocketAddr, account: Account) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("failed to listen on {address}"))?;
    let page = move |path: String| {
        let account = account.clone();
        async move {
            if path != "/health" {
                return HttpPage::text(StatusCode::NOT_FOUND, "not found; the page is /health\n");
            }
            match account.check().await.unready_reason() {
                None => HttpPage::text(StatusCode::OK, ""),
                Some(reason) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")),
            }
        }
    };
    Ok(serve_pages(listener, page))
}
