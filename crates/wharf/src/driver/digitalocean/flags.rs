//! Flags about the API and this droplet, and what is asked of the metadata service because no flag tells it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use wharf_driver_digitalocean::client::{self, REQUESTS_A_MINUTE};
use wharf_driver_digitalocean::{Client, ClientOptions, Metadata, Token, metadata};

/// Where the token is, for those who do not want it in a file.
const TOKEN_VARIABLE: &str = "DIGITALOCEAN_ACCESS_TOKEN";

/// How to speak to DigitalOcean.
#[derive(Debug, clap::Args)]
pub(super) struct ApiArgs {
    /// File with the API token; may be replaced at any time
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The API token itself. Better: --token-file, or DIGITALOCEAN_ACCESS_TOKEN in the environment
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// URL of the API
    #[arg(long, value_name = "URL", default_value = client::DEFAULT_URL)]
    url: String,
    /// Region of the volumes, such as nyc3. Asked of the metadata service if it is not told
    #[arg(long, value_name = "SLUG")]
    pub(super) region: Option<String>,
    /// URL of the metadata service
    #[arg(long, value_name = "URL", default_value = metadata::DEFAULT_URL)]
    metadata_url: String,
    /// Requests a second to the API at most; 0 for DigitalOcean's usual limit, 250 a minute
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = rate)]
    do_api_rate_limit: f64,
}

/// Where the driver is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: String,
    /// `None` for a controller that is not a node.
    pub(super) droplet: Option<u64>,
}

/// What must be asked of the metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs {
    region: bool,
    droplet: bool,
}

impl Needs {
    /// Only what no flag tells; and a controller need not be a droplet.
    pub(super) fn of(controller: bool, droplet: Option<u64>, region: Option<&str>) -> Self {
        Self { region: region.is_none_or(str::is_empty), droplet: !controller && droplet.is_none() }
    }
}

impl ApiArgs {
    /// The API, if there is a token.
    pub(super) fn client(&self) -> anyhow::Result<Option<Client>> {
        let variable = std::env::var(TOKEN_VARIABLE).ok();
        let given = |token: &Option<String>| token.clone().filter(|token| !token.is_empty());
        let token = match (&self.token_file, given(&self.token), given(&variable)) {
            (Some(file), _, _) => Token::file(file)?,
            (None, Some(token), _) => {
                tracing::warn!(
                    "everybody on this machine can read --token; use --token-file or {TOKEN_VARIABLE}"
                );
                Token::fixed(&token)?
            }
            (None, None, Some(token)) => Token::fixed(&token).with_context(|| TOKEN_VARIABLE)?,
            (None, None, None) => return Ok(None),
        };
        let mut options = ClientOptions::new(&self.url, token);
        options.requests_a_minute = requests_a_minute(self.do_api_rate_limit);
        Ok(Some(Client::new(options)?))
    }

    /// Where this is, by flags and metadata.
    pub(super) async fn place(&self, needs: Needs, droplet: Option<u64>) -> anyhow::Result<Place> {
        let metadata = Metadata::new(&self.metadata_url)?;
        let region = match needs.region {
            true => metadata.region().await.context("--region was not given")?,
            false => self.region.clone().unwrap_or_default(),
        };
        let droplet = match needs.droplet {
            true => Some(metadata.droplet_id().await.context("--droplet-id was not given")?),
            false => droplet,
        };
        Ok(Place { region, droplet })
    }
}

/// What we allow ourselves: what DigitalOcean allows everybody, unless it is said otherwise. It may allow some more.
fn requests_a_minute(a_second: f64) -> u32 {
    match a_second > 0.0 {
        // Casts saturate.
        true => ((a_second * 60.0).ceil() as u32).max(1),
        false => REQUESTS_A_MINUTE,
    }
}

fn rate(text: &str) -> anyhow::Result<f64> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => bail!("use a number of requests a second, or 0 for no limit of our own"),
    }
}

/// An address as Go takes it too: `:9809` is that port of all addresses.
pub(super) fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let full = match text.starts_with(':') {
        true => format!("[::]{text}"),
        false => text.to_owned(),
    };
    full.parse().with_context(|| format!("use an address such as 127.0.0.1:9809 or :9809, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B3: a region that is told is used, and a controller outside DigitalOcean asks no metadata service.
    #[test]
    fn only_what_no_flag_tells_is_asked() {
        for (controller, droplet, region, asks_region, asks_droplet) in [
            (true, None, Some("nyc3"), false, false),
            (true, None, None, true, false),
            (true, None, Some(""), true, false),
            (true, Some(7), None, true, false),
            (true, Some(7), Some("nyc3"), false, false),
            (false, None, None, true, true),
            (false, None, Some("nyc3"), false, true),
            (false, Some(7), None, true, false),
            (false, Some(7), Some("nyc3"), false, false),
        ] {
            let needs = Needs { region: asks_region, droplet: asks_droplet };
            assert_eq!(Needs::of(controller, droplet, region), needs, "{controller} {droplet:?} {region:?}");
        }
    }

    #[test]
    fn rates_and_addresses() {
        for (a_second, a_minute) in
            [(0.0, 250), (0.001, 1), (1.0, 60), (4.0, 240), (5.0, 300), (1e300, u32::MAX)]
        {
            assert_eq!(requests_a_minute(a_second), a_minute, "{a_second}");
        }
        assert!(rate("-1").is_err() && rate("inf").is_err() && rate("x").is_err());
        assert_eq!(address(":9809").unwrap().to_string(), "[::]:9809");
        assert_eq!(address("127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        assert!(address("9809").is_err());
    }
}
