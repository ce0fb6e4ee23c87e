//! `wharf driver digitalocean`: the existing driver's flags, read into a checked configuration, and the driver until
//! it is told to stop.

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
use wharf_csi::{Endpoint, Page, serve_pages};
use wharf_driver::ServeOptions;
use wharf_driver_digitalocean::actions::Pace;
use wharf_driver_digitalocean::{Account, Cloud, Config, Standing};
use wharf_linux::Linux;

use crate::signal::stop_signal;
use flags::{ApiArgs, Needs};
use orphans::OrphansArgs;

const EXPLANATION: &str = "\
With a token it is the controller: one for a cluster, beside `wharf sidecar`. Without one it is the node half, which
needs none: one on each droplet. With --droplet-id a controller is a node as well. The region, and a node's droplet,
are asked of the droplet's metadata service where no flag tells them; a controller that is told its region can run
anywhere.

The token is that of --token-file (read again for each request, so that it can be replaced), or of the environment
variable DIGITALOCEAN_ACCESS_TOKEN. --token works too, but everybody on the machine can read it there.

Example, a controller and a node (see deploy/digitalocean.yaml):
  wharf driver digitalocean --token-file /etc/digitalocean/access-token --endpoint unix:///csi/csi.sock
  wharf driver digitalocean --endpoint unix:///var/lib/kubelet/plugins/dobs.csi.digitalocean.com/csi.sock

Volumes that dobs.csi.digitalocean.com made are served as they are: docs/driver-digitalocean.md says how to take over
a running cluster.";

/// Serve DigitalOcean Block Storage (dobs.csi.digitalocean.com)
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION, args_conflicts_with_subcommands = true)]
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
    /// The droplet that this is: the node's id. Asked of the metadata service by a node that is not told
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    droplet_id: Option<u64>,
    /// Name of the driver: com.digitalocean.csi.dobs for volumes from before CSI 0.3
    #[arg(long, value_name = "NAME", default_value = wharf_driver_digitalocean::DRIVER_NAME)]
    driver_name: String,
    /// Tag for every volume, also for those that exist, when they are attached
    #[arg(long, value_name = "TAG")]
    do_tag: Option<String>,
    /// How many volumes a droplet can have; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(i64).range(0..))]
    volume_limit: i64,
    /// Address of the page /health, which tells whether the API works for the controller, such as :9809
    #[arg(long, value_name = "ADDRESS", value_parser = flags::address)]
    debug_addr: Option<SocketAddr>,
    /// Address for /metrics and /healthz, such as 127.0.0.1:9808; nowhere if not given
    #[arg(long, value_name = "ADDRESS", value_parser = flags::address)]
    metrics_listen: Option<SocketAddr>,
    /// Accepted for manifests that exist. Listings are never cut short here
    #[arg(long, value_name = "N")]
    default_volumes_page_size: Option<u32>,
    /// Accepted for manifests that exist. Here a device is always checked before it is used
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    validate_attachment: Option<bool>,
    /// Print the version
    #[arg(long)]
    version: bool,
    /// Where the links to devices are
    #[arg(long, value_name = "DIR", default_value = "/dev/disk/by-id", hide = true)]
    device_dir: PathBuf,
    /// Where the node keeps notes of its volumes [default: /var/lib/kubelet/plugins/<driver name>/volumes]
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
        tracing::warn!("--default-volumes-page-size means nothing here: listings are never cut short");
    }
    if validate_attachment.is_some() {
        tracing::warn!("--validate-attachment means nothing here: devices are always checked");
    }
    let stop = stop_signal()?;
    tokio::pin!(stop);
    let client = api.client()?;
    let needs = Needs::of(client.is_some(), droplet_id, api.region.as_deref());
    let place = tokio::select! {
        place = api.place(needs, droplet_id) => place?,
        // A metadata service that hangs holds up nobody who stops us.
        () = &mut stop => return Ok(()),
    };
    let state_dir =
        state_dir.unwrap_or_else(|| format!("/var/lib/kubelet/plugins/{driver_name}/volumes").into());
    let account = client.clone().map(Account::new);
    let cloud =
        client.zip(account.clone()).map(|(client, account)| Cloud { client, account, pace: Pace::default() });
    let config = Config {
        driver_name,
        region: place.region,
        droplet: place.droplet,
        volume_limit,
        tag: do_tag.filter(|tag| !tag.is_empty()),
        device_dir,
        state_dir,
    };
    let driver = wharf_driver_digitalocean::driver(Arc::new(Linux::new()), cloud, config)?;
    let _watched =
        account.clone().map(|account| AbortOnDropHandle::new(tokio::spawn(tell_standing(account))));
    let _health = match debug_addr.zip(account) {
        Some((address, account)) => {
            Some(AbortOnDropHandle::new(tokio::spawn(health(address, account).await?)))
        }
        None => None,
    };
    Ok(driver.serve(&endpoint, ServeOptions { metrics_listen }, stop).await?)
}

/// How often is looked whether the account is in order, if nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// Says in the log how the account stands, whenever that changes.
async fn tell_standing(account: Account) {
    let mut told = Standing::Good;
    loop {
        let standing = account.check().await;
        if standing != told {
            match &standing {
                Standing::Good => tracing::info!("the account is in order"),
                other => tracing::warn!(standing = ?other, "the account is not in order"),
            }
            told = standing;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The page /health: 200 and nothing, or 500 and why.
async fn health(address: SocketAddr, account: Account) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    let page = move |path: String| {
        let account = account.clone();
        async move {
            if path != "/health" {
                return Page::text(StatusCode::NOT_FOUND, "there is /health\n");
            }
            match account.check().await.trouble() {
                None => Page::text(StatusCode::OK, ""),
                Some(why) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
            }
        }
    };
    Ok(serve_pages(listener, page))
}
