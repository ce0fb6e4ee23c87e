//! `wharf fake digitalocean`: flags into the options of a fake, and the fake until it is told to stop.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use wharf_fake_digitalocean::{DropletOptions, Fake, Fault, Half, HalfAttached, Knobs, Options};

use crate::signal::stop_signal;
use crate::size::parse_duration;

const EXPLANATION: &str = "\
It serves volumes, snapshots, actions, droplets, tags, regions and the account of one account, with DigitalOcean's
errors, pages, rate limits and delays; and the metadata service of each droplet, each at an address of its own.
What it holds is in --state, and a fake that is started again goes on with it.

Example: two nodes on one machine, whose volumes are real devices:
  wharf fake digitalocean --listen 127.0.0.1:8000 --state /tmp/do \\
    --droplet 101@127.0.0.1:8001 --droplet 102@127.0.0.1:8002 --attach-real /tmp/by-id

When it is ready it prints its addresses, a line each: `api URL`, `metadata DROPLET URL`.
While it runs, faults and limits are set and requests are read at /fake/v1 of the API's address:
  curl -d '{\"path\":\"/v2/volumes\",\"times\":1,\"what\":\"reset_after\"}' http://127.0.0.1:8000/fake/v1/faults
See docs/fake-digitalocean.md.";

/// Serve DigitalOcean's API for volumes, and its metadata service
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(super) struct Args {
    /// Address of the API, such as 127.0.0.1:8000; port 0 for any
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Address of the first droplet's metadata service, if --droplet does not say it
    #[arg(long, value_name = "ADDRESS")]
    metadata_listen: Option<SocketAddr>,
    /// Directory that keeps what it holds; made if it is not there
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// A droplet, its region, and where its metadata service is; may be repeated
    #[arg(long = "droplet", value_name = "ID[:REGION][@ADDRESS]", default_value = "1")]
    droplets: Vec<DropletFlag>,
    /// Region of droplets that name none
    #[arg(long, value_name = "SLUG", default_value = "nyc3")]
    region: String,
    /// File with the tokens that are let in, a line each; any token if not given
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How long an action takes: 0, 500ms, 11s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = delay)]
    action_delay: Duration,
    /// How many volumes a droplet can have
    #[arg(long, value_name = "N", default_value_t = 7)]
    volumes_per_droplet: u64,
    /// How many volumes the account can have; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 100)]
    volume_limit: u64,
    /// GiB that the account's volumes and snapshots can have together; 0 for no limit
    #[arg(long, value_name = "GIB", default_value_t = 0)]
    capacity: u64,
    /// Requests of one token in an hour; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 5000)]
    requests_per_hour: u64,
    /// Requests of one token in a minute; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 250)]
    requests_per_minute: u64,
    /// How long a volume cannot be snapshotted again; 0 switches the rule off
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = delay)]
    snapshot_interval: Duration,
    /// Directory for links to the devices of attached volumes, as DIR/DROPLET/scsi-0DO_Volume_NAME; needs root
    #[arg(long, value_name = "DIR")]
    attach_real: Option<PathBuf>,
    /// How long after a completed attach its device appears
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = delay)]
    device_delay: Duration,
    /// What appears first in place of a device, and for how long: dangling=2s, empty=2s or short=2s
    #[arg(long, value_name = "SHAPE=DURATION", value_parser = half)]
    half_attached: Option<HalfAttached>,
    /// A fault from the start, in JSON as at /fake/v1/faults; may be repeated
    #[arg(long = "fault", value_name = "JSON", value_parser = fault)]
    faults: Vec<Fault>,
}

/// A droplet as it is written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DropletFlag {
    id: u64,
    region: Option<String>,
    metadata: Option<SocketAddr>,
}

impl FromStr for DropletFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = match text.split_once('@') {
            Some((name, address)) => (name, Some(address)),
            None => (text, None),
        };
        let (id, region) = match name.split_once(':') {
            Some((id, region)) => (id, Some(region.to_owned())),
            None => (name, None),
        };
        let id = id.parse().map_err(|_| format!("{id:?} is not the number of a droplet"))?;
        let metadata = address.map(|address| {
            address.parse().map_err(|_| format!("{address:?} is not an address such as 127.0.0.1:8001"))
        });
        Ok(Self { id, region, metadata: metadata.transpose()? })
    }
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    // Before anything else: a signal that comes meanwhile must not be lost, and devices be left behind.
    let stop = stop_signal()?;
    let fake = Fake::start(options(args)?).await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "api {}", fake.url())?;
        for (droplet, url) in fake.metadata_urls() {
            writeln!(out, "metadata {droplet} {url}")?;
        }
        out.flush()?;
    }
    stop.await;
    Ok(fake.stop().await?)
}

fn options(args: Args) -> anyhow::Result<Options> {
    let Args {
        listen,
        metadata_listen,
        state,
        droplets,
        region,
        token_file,
        action_delay,
        volumes_per_droplet,
        volume_limit,
        capacity,
        requests_per_hour,
        requests_per_minute,
        snapshot_interval,
        attach_real,
        device_delay,
        half_attached,
        faults,
    } = args;
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let mut first = metadata_listen;
    let droplets = droplets.into_iter().map(|droplet| DropletOptions {
        id: droplet.id,
        region: droplet.region.unwrap_or_else(|| region.clone()),
        name: None,
        metadata: droplet.metadata.or_else(|| first.take()).unwrap_or(any),
    });
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Ok(Options {
        listen,
        state: Some(state),
        tokens: token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
        droplets: droplets.collect(),
        knobs: Knobs {
            action_delay_ms: ms(action_delay),
            volumes_per_droplet,
            volume_limit,
            capacity_gigabytes: capacity,
            requests_per_hour,
            requests_per_minute,
            snapshot_interval_ms: ms(snapshot_interval),
            device_delay_ms: ms(device_delay),
            half_attached,
        },
        faults,
        attach_real,
    })
}

/// The tokens in a file. One without any is refused: it would let in everybody.
fn tokens(path: &Path) -> anyhow::Result<Vec<String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("read the tokens in {}", path.display()))?;
    let tokens: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    anyhow::ensure!(!tokens.is_empty(), "there is no token in {}", path.display());
    Ok(tokens)
}

/// A duration that may be none.
fn delay(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

fn half(text: &str) -> Result<HalfAttached, String> {
    let wrong = || format!("{text:?} is not such as dangling=2s, empty=2s or short=2s");
    let (shape, time) = text.split_once('=').ok_or_else(wrong)?;
    let shape = match shape {
        "dangling" => Half::Dangling,
        "empty" => Half::Empty,
        "short" => Half::Short,
        _ => return Err(wrong()),
    };
    let for_ms = u64::try_from(parse_duration(time)?.as_millis()).unwrap_or(u64::MAX);
    Ok(HalfAttached { shape, for_ms })
}

fn fault(text: &str) -> Result<Fault, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn droplets() {
        let address = |text: &str| text.parse().unwrap();
        for (text, id, region, metadata) in [
            ("1", 1, None, None),
            ("2756294@127.0.0.1:8001", 2756294, None, Some(address("127.0.0.1:8001"))),
            ("7:ams3", 7, Some("ams3"), None),
            ("7:ams3@[::1]:80", 7, Some("ams3"), Some(address("[::1]:80"))),
        ] {
            let expected = DropletFlag { id, region: region.map(str::to_owned), metadata };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "x", "1@", "1@host", "-1", ":ams3"] {
            assert!(text.parse::<DropletFlag>().is_err(), "{text}");
        }
    }

    #[test]
    fn halves_and_delays() {
        assert_eq!(half("short=2s"), Ok(HalfAttached { shape: Half::Short, for_ms: 2_000 }));
        for text in ["short", "long=2s", "empty=", "empty=0s"] {
            assert!(half(text).is_err(), "{text}");
        }
        assert_eq!(delay("0"), Ok(Duration::ZERO));
        assert_eq!(delay("11s"), Ok(Duration::from_secs(11)));
        assert!(delay("soon").is_err());
    }
}
