//! `fake-digitalocean`: builds the fake's options from flags and runs it until a stop signal.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use wharf_fake_digitalocean::{
    DropletOptions, FakeDigitalOcean, FakeOptions, FakeSettings, Fault, HalfAttached, HalfAttachedShape,
};

const AFTER_HELP: &str = "\
Serves volumes, snapshots, actions, droplets, tags, regions and account data of one account, with DigitalOcean's errors, \
pagination, rate limits and delays. Each droplet has its own metadata service at its own address. The state is stored in \
--state and survives restarts.

Example with two nodes on one machine, whose volumes are real devices:
  fake-digitalocean --listen 127.0.0.1:8000 --state /tmp/do \\
    --droplet 101@127.0.0.1:8001 --droplet 102@127.0.0.1:8002 --attach-real /tmp/by-id

When the fake is ready, it prints one address per line: `api URL`, `metadata DROPLET URL`. While it runs, /fake/v1 of the \
API address sets faults and limits and returns the received requests:
  curl -d '{\"path\":\"/v2/volumes\",\"times\":1,\"effect\":\"reset_after\"}' \\
    http://127.0.0.1:8000/fake/v1/faults

See docs/fake-digitalocean.md.";

/// Serve a fake of DigitalOcean's volume API and metadata service
#[derive(Debug, Parser)]
#[command(name = "fake-digitalocean", version, after_help = AFTER_HELP)]
struct Args {
    /// Listen address of the API, such as 127.0.0.1:8000; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Listen address of the first droplet's metadata service, if --droplet does not set it
    #[arg(long, value_name = "ADDRESS")]
    metadata_listen: Option<SocketAddr>,
    /// Directory for the state; created if it does not exist
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Droplet with its region and the address of its metadata service; may be repeated
    #[arg(long = "droplet", value_name = "ID[:REGION][@ADDRESS]", default_value = "1")]
    droplets: Vec<DropletFlag>,
    /// Default region of droplets
    #[arg(long, value_name = "SLUG", default_value = "nyc3")]
    region: String,
    /// File with the accepted tokens, one per line [default: any token is accepted]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Duration of an action, such as 0, 500ms or 11s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_delay)]
    action_delay: Duration,
    /// Maximum number of volumes per droplet
    #[arg(long, value_name = "N", default_value_t = 7)]
    volumes_per_droplet: u64,
    /// Maximum number of volumes of the account; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 100)]
    volume_limit: u64,
    /// Maximum total size of the account's volumes and snapshots in GiB; 0 for no limit
    #[arg(long, value_name = "GIB", default_value_t = 0)]
    capacity: u64,
    /// Maximum number of requests per token and hour; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 5000)]
    requests_per_hour: u64,
    /// Maximum number of requests per token and minute; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 250)]
    requests_per_minute: u64,
    /// Minimum interval between snapshots of a volume; 0 for none
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_delay)]
    snapshot_interval: Duration,
    /// Directory for links to the devices of attached volumes, as DIR/DROPLET/scsi-0DO_Volume_NAME; needs root
    #[arg(long, value_name = "DIR")]
    attach_real: Option<PathBuf>,
    /// Delay between a completed attach and the appearance of the device
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = parse_delay)]
    device_delay: Duration,
    /// Incomplete device that appears before the real one, and for how long: dangling=2s, empty=2s or short=2s
    #[arg(long, value_name = "SHAPE=DURATION", value_parser = parse_half_attached)]
    half_attached: Option<HalfAttached>,
    /// Fault that is active from the start, in the JSON format of /fake/v1/faults; may be repeated
    #[arg(long = "fault", value_name = "JSON", value_parser = parse_fault)]
    faults: Vec<Fault>,
    /// Log level (error, warn, info, debug or trace), or a filter such as hyper=debug,warn
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = "info")]
    log_level: String,
}

/// A droplet on the command line.
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
        let id = id.parse().map_err(|_| format!("{id:?} is not a droplet ID"))?;
        let metadata = address.map(|address| {
            address.parse().map_err(|_| format!("{address:?} is not an address such as 127.0.0.1:8001"))
        });
        Ok(Self { id, region, metadata: metadata.transpose()? })
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let filter = EnvFilter::try_new(&args.log_level)
        .with_context(|| format!("invalid log filter {:?}", args.log_level))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    // Installed first: a signal during startup must not skip the cleanup of devices.
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let fake = FakeDigitalOcean::start(options(args)?).await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "api {}", fake.url())?;
        for (droplet, url) in fake.metadata_urls() {
            writeln!(out, "metadata {droplet} {url}")?;
        }
        out.flush()?;
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(fake.stop().await?)
}

fn options(args: Args) -> anyhow::Result<FakeOptions> {
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
        log_level: _,
    } = args;
    let any_port = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let mut first_metadata_address = metadata_listen;
    let droplets = droplets.into_iter().map(|droplet| DropletOptions {
        id: droplet.id,
        region: droplet.region.unwrap_or_else(|| region.clone()),
        name: None,
        metadata: droplet.metadata.or_else(|| first_metadata_address.take()).unwrap_or(any_port),
    });
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Ok(FakeOptions {
        listen,
        state: Some(state),
        tokens: token_file.as_deref().map(read_tokens).transpose()?.unwrap_or_default(),
        droplets: droplets.collect(),
        settings: FakeSettings {
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

/// Reads the accepted tokens. A file without tokens is an error: the fake would accept every token.
fn read_tokens(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read tokens from {}", path.display()))?;
    let tokens: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    anyhow::ensure!(!tokens.is_empty(), "{} contains no token", path.display());
    Ok(tokens)
}

/// Parses a duration such as `500ms`, `11s` or `10m`; `0` needs no unit.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let parsed = match text {
        "0" => Some(Duration::ZERO),
        _ => text.parse::<jiff::SignedDuration>().ok().and_then(|duration| duration.try_into().ok()),
    };
    parsed.ok_or_else(|| {
        format!("{text:?} is not a duration: write a number and a unit, such as 500ms, 30s or 2m")
    })
}

fn parse_half_attached(text: &str) -> Result<HalfAttached, String> {
    let invalid = || format!("{text:?} is not SHAPE=DURATION, such as dangling=2s, empty=2s or short=2s");
    let (shape, time) = text.split_once('=').ok_or_else(invalid)?;
    let shape = match shape {
        "dangling" => HalfAttachedShape::Dangling,
        "empty" => HalfAttachedShape::Empty,
        "short" => HalfAttachedShape::Short,
        _ => return Err(invalid()),
    };
    let time = parse_delay(time)?;
    if time.is_zero() {
        return Err(invalid());
    }
    Ok(HalfAttached { shape, for_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) })
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_in_help_text_is_valid() {
        let (_, example) = AFTER_HELP.split_once("curl -d '").unwrap();
        let (fault, _) = example.split_once('\'').unwrap();
        let fault: Fault = serde_json::from_str(fault).unwrap();
        assert_eq!((fault.path.as_deref(), fault.times), (Some("/v2/volumes"), Some(1)));
    }

    #[test]
    fn droplet_flags_are_parsed_or_refused() {
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
    fn half_attached_and_delay_flags_are_parsed_or_refused() {
        assert_eq!(
            parse_half_attached("short=2s"),
            Ok(HalfAttached { shape: HalfAttachedShape::Short, for_ms: 2_000 })
        );
        for text in ["short", "long=2s", "empty=", "empty=0s"] {
            assert!(parse_half_attached(text).is_err(), "{text}");
        }
        assert_eq!(parse_delay("0"), Ok(Duration::ZERO));
        assert_eq!(parse_delay("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_delay("11s"), Ok(Duration::from_secs(11)));
        assert_eq!(parse_delay("10m"), Ok(Duration::from_secs(600)));
        for text in ["", "soon", "11", "-1s"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }
}
