//! livenessprobe.

use std::time::Duration;

use wharf_sidecar::process::{Address, Listen, Sidecar};

use super::{
    CSI_ADDRESS, Flag, FlagError, ParsedFlags, REMOVED_UPSTREAM, Support, ValueKind, csi_endpoint, flag,
    mutually_exclusive, parse_address,
};
use Support::Same;
use ValueKind::{Duration as Time, Text};

/// The default port of the health pages.
pub const HEALTH_PORT: u16 = 9808;

pub(super) static FLAGS: [Flag; 7] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("probe-timeout", Time, "3s", Same("")),
    flag("health-port", Text, "9808", Same("mutually exclusive with `--http-endpoint`")),
    flag("http-endpoint", Text, "", Same("also serves `/readyz`")),
    flag("metrics-address", Text, "", Same("mutually exclusive with `--http-endpoint`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("connection-timeout", Time, "0s", REMOVED_UPSTREAM),
];

pub(super) fn configure(parsed: &ParsedFlags) -> Result<Sidecar, FlagError> {
    let port = parsed.text("health-port").map_or(Ok(HEALTH_PORT), |port| {
        port.parse().map_err(|_| FlagError(format!("flag -health-port: {port:?} is not a port")))
    })?;
    let metrics = Some(parsed.text("metrics-path").unwrap_or("/metrics").to_owned());
    let listen = match (parsed.text("http-endpoint"), parsed.text("metrics-address")) {
        (Some(_), Some(_)) => return Err(mutually_exclusive("metrics-address")),
        // As upstream: setting the default port explicitly is not a conflict.
        (Some(_), None) if port != HEALTH_PORT => return Err(mutually_exclusive("health-port")),
        (Some(address), None) => {
            vec![Listen { address: parse_address("http-endpoint", address)?, health: true, metrics }]
        }
        (None, metrics_address) => {
            let health = Listen { address: Address::port(port), health: true, metrics: None };
            let metrics_listen =
                metrics_address.map(|address| parse_address("metrics-address", address)).transpose()?;
            let metrics_listen = metrics_listen.map(|address| Listen { address, health: false, metrics });
            std::iter::once(health).chain(metrics_listen).collect()
        }
    };
    Ok(Sidecar {
        driver: Some(csi_endpoint(parsed)?),
        registrar: None,
        probe_timeout: Some(parsed.timeout("probe-timeout", Duration::from_secs(3))?),
        controller: None,
        listen,
    })
}
