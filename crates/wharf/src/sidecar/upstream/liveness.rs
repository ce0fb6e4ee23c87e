//! livenessprobe: does the driver answer?

use std::time::Duration;

use wharf_sidecar::process::{Address, Listen, Sidecar};

use super::{
    Becomes, CSI_ADDRESS, Flag, FlagError, Given, REMOVED, Takes, driver, flag, only_one, to_address,
};
use Becomes::Same;
use Takes::{Duration as Time, Text};

/// Where it listens if nobody says.
pub(in crate::sidecar) const HEALTH_PORT: u16 = 9808;

pub(super) static FLAGS: [Flag; 7] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("probe-timeout", Time, "3s", Same("")),
    flag("health-port", Text, "9808", Same("cannot be used with `--http-endpoint`")),
    flag("http-endpoint", Text, "", Same("also serves `/readyz`")),
    flag("metrics-address", Text, "", Same("cannot be used with `--http-endpoint`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("connection-timeout", Time, "0s", REMOVED),
];

pub(super) fn asked(given: &Given) -> Result<Sidecar, FlagError> {
    let port = given.text("health-port").map_or(Ok(HEALTH_PORT), |port| {
        port.parse().map_err(|_| FlagError(format!("flag -health-port: {port:?} is not a port")))
    })?;
    let metrics = Some(given.text("metrics-path").unwrap_or("/metrics").to_owned());
    let listen = match (given.text("http-endpoint"), given.text("metrics-address")) {
        (Some(_), Some(_)) => return Err(only_one("metrics-address")),
        // As upstream: the default port given in so many words is no contradiction.
        (Some(_), None) if port != HEALTH_PORT => return Err(only_one("health-port")),
        (Some(address), None) => {
            vec![Listen { address: to_address("http-endpoint", address)?, health: true, metrics }]
        }
        (None, metrics_address) => {
            let health = Listen { address: Address::port(port), health: true, metrics: None };
            let beside = metrics_address.map(|address| to_address("metrics-address", address)).transpose()?;
            let beside = beside.map(|address| Listen { address, health: false, metrics });
            std::iter::once(health).chain(beside).collect()
        }
    };
    Ok(Sidecar {
        driver: Some(driver(given)?),
        registrar: None,
        probe_timeout: Some(given.timeout("probe-timeout", Duration::from_secs(3))?),
        controller: None,
        listen,
    })
}
