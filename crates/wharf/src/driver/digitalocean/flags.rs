//! Flags of the API client and of this droplet. Values without a flag come from the metadata service.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use wharf_driver_digitalocean::client::{self, REQUESTS_PER_MINUTE};
use wharf_driver_digitalocean::{Client, ClientOptions, Metadata, Token, metadata};

/// Environment variable with the token, as an alternative to a file.
const TOKEN_ENV: &str = "DIGITALOCEAN_ACCESS_TOKEN";

/// Flags of the API client.
#[derive(Debug, clap::Args)]
pub(super) struct ApiArgs {
    /// File with the API token; it can be replaced at any time
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// API token, visible to all users of the machine; prefer --token-file or DIGITALOCEAN_ACCESS_TOKEN
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// URL of the API
    #[arg(long, value_name = "URL", default_value = client::DEFAULT_URL)]
    url: String,
    /// Region of the volumes, such as nyc3 [default: from the metadata service]
    #[arg(long, value_name = "SLUG")]
    pub(super) region: Option<String>,
    /// URL of the metadata service
    #[arg(long, value_name = "URL", default_value = metadata::DEFAULT_URL)]
    metadata_url: String,
    /// Maximum number of API requests per second; 0 for DigitalOcean's usual limit of 250 per minute
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = parse_rate)]
    do_api_rate_limit: f64,
}

/// Region and droplet of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) region: String,
    /// `None` for a controller that is not a node.
    pub(super) droplet: Option<u64>,
}

/// The values to read from the metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MetadataNeeds {
    region: bool,
    droplet: bool,
}

impl MetadataNeeds {
    /// Only values without a flag are needed. A controller does not need a droplet.
    pub(super) fn new(controller: bool, droplet: Option<u64>, region: Option<&str>) -> Self {
        Self { region: region.is_none_or(str::is_empty), droplet: !controller && droplet.is_none() }
    }
}

impl ApiArgs {
    /// The API client, if there is a token.
    pub(super) fn client(&self) -> anyhow::Result<Option<Client>> {
        let variable = std::env::var(TOKEN_ENV).ok();
        let given = |token: &Option<String>| token.clone().filter(|token| !token.is_empty());
        let token = match (&self.token_file, given(&self.token), given(&variable)) {
            (Some(file), _, _) => Token::file(file)?,
            (None, Some(token), _) => {
                tracing::warn!(
                    "--token is visible to all users of this machine; use --token-file or {TOKEN_ENV}"
                );
                Token::fixed(&token)?
            }
            (None, None, Some(token)) => Token::fixed(&token).with_context(|| TOKEN_ENV)?,
            (None, None, None) => return Ok(None),
        };
        let mut options = ClientOptions::new(&self.url, token);
        options.requests_per_minute = requests_per_minute(self.do_api_rate_limit);
        Ok(Some(Client::new(options)?))
    }

    /// The location, from flags and the metadata service.
    pub(super) async fn location(
        &self,
        needs: MetadataNeeds,
        droplet: Option<u64>,
    ) -> anyhow::Result<Location> {
        let metadata = Metadata::new(&self.metadata_url)?;
        let region = match needs.region {
            true => metadata.region().await.context("--region was not given")?,
            false => self.region.clone().unwrap_or_default(),
        };
        let droplet = match needs.droplet {
            true => Some(metadata.droplet_id().await.context("--droplet-id was not given")?),
            false => droplet,
        };
        Ok(Location { region, droplet })
    }
}

/// The client's rate limit: DigitalOcean's usual limit unless the flag is set, because some accounts have a higher one.
fn requests_per_minute(per_second: f64) -> u32 {
    match per_second > 0.0 {
        // The cast saturates.
        true => ((per_second * 60.0).ceil() as u32).max(1),
        false => REQUESTS_PER_MINUTE,
    }
}

fn parse_rate(text: &str) -> anyhow::Result<f64> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => bail!("use a number of requests per second, or 0 for DigitalOcean's usual limit"),
    }
}

/// Parses an address as Go does: `:9809` is that port on all addresses.
pub(super) fn parse_address(text: &str) -> anyhow::Result<SocketAddr> {
    let full = match text.starts_with(':') {
        true => format!("[::]{text}"),
        false => text.to_owned(),
    };
    full.parse().with_context(|| format!("use an address such as 127.0.0.1:9809 or :9809, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--region` is honoured, and a controller outside DigitalOcean does not call the metadata service.
    #[test]
    fn metadata_service_is_used_only_for_missing_flags() {
        for (controller, droplet, region, needs_region, needs_droplet) in [
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
            let needs = MetadataNeeds { region: needs_region, droplet: needs_droplet };
            assert_eq!(
                MetadataNeeds::new(controller, droplet, region),
                needs,
                "{controller} {droplet:?} {region:?}"
            );
        }
    }

    #[test]
    fn rates_and_addresses_are_parsed_or_refused() {
        for (per_second, per_minute) in
            [(0.0, 250), (0.001, 1), (1.0, 60), (4.0, 240), (5.0, 300), (1e300, u32::MAX)]
        {
            assert_eq!(requests_per_minute(per_second), per_minute, "{per_second}");
        }
        assert!(parse_rate("-1").is_err() && parse_rate("inf").is_err() && parse_rate("x").is_err());
        assert_eq!(parse_address(":9809").unwrap().to_string(), "[::]:9809");
        assert_eq!(parse_address("127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        assert!(parse_address("9809").is_err());
    }
}
