//! The command line of upstream's external-snapshot-metadata.

use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::process::Address;
use wharf_sidecar::snapshot_metadata::{Config, Tls};

use super::{
    CSI_ADDRESS, Environment, Flag, FlagError, ParsedFlags, Support, ValueKind, csi_endpoint, flag,
    parse_address,
};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Decimal, Duration as Time, Number, Text};

const HTTP_ENDPOINT: &str = ":8080";
const PORT: u16 = 50051;
const FIXED_TLS_CHOICE: Support = Ignored("wharf supports only strong TLS parameters");

pub(super) static FLAGS: [Flag; 17] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("port", Number, "50051", Same("")),
    flag("tls-cert", Text, "", Same("required unless `TLS_CERT_PATH` is set")),
    flag("tls-key", Text, "", Same("required unless `TLS_KEY_PATH` is set")),
    flag("tls-min-version", Text, "", Same("`VersionTLS12` or `VersionTLS13`")),
    flag("tls-cipher-suites", Text, "", FIXED_TLS_CHOICE),
    flag("tls-curve-preferences", Text, "", FIXED_TLS_CHOICE),
    flag("audience", Text, "", Same("default: the audience of the driver's SnapshotMetadataService")),
    flag("max-streaming-duration-min", Number, "10", Same("")),
    flag("timeout", Time, "1m0s", Ignored("the service waits for the driver")),
    flag("kubeconfig", Text, "", Same("")),
    flag("kube-api-qps", Decimal, "5", Same("no limit if not set")),
    flag("kube-api-burst", Count, "10", Same("only with `--kube-api-qps`")),
    flag("http-endpoint", Text, HTTP_ENDPOINT, Same("serves `/health` and the metrics")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("disable-metrics", Bool, "false", Same("")),
    flag("version", Bool, "false", Same("prints the version of wharf")),
];

pub(super) fn configure(parsed: &ParsedFlags, environment: &Environment) -> Result<Config, FlagError> {
    let required = |flag: &str, variable: &Option<String>| {
        let value = parsed.text(flag).map(str::to_owned).or_else(|| variable.clone());
        value.map(Into::into).ok_or_else(|| FlagError(format!("flag -{flag} is required")))
    };
    let port = match parsed.number("port") {
        None => PORT,
        Some(port) => u16::try_from(port)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| FlagError(format!("flag -port: {port} is not a port")))?,
    };
    let only_1_3 = match parsed.text("tls-min-version") {
        None | Some("" | "VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(other) => {
            let known = "VersionTLS12 or VersionTLS13";
            return Err(FlagError(format!("flag -tls-min-version: {other:?} is not supported; use {known}")));
        }
    };
    // As upstream: zero or a negative number means the default.
    let minutes = parsed.number("max-streaming-duration-min").and_then(|minutes| u64::try_from(minutes).ok());
    let minutes = minutes.filter(|minutes| *minutes > 0).unwrap_or(10);
    let qps = parsed.decimal("kube-api-qps").filter(|qps| *qps > 0.0);
    let burst = parsed.number("kube-api-burst").and_then(|burst| u32::try_from(burst).ok());
    let metrics = parsed.text("metrics-path").unwrap_or("/metrics").to_owned();
    Ok(Config {
        driver: csi_endpoint(parsed)?,
        connect: ConnectOptions {
            kubeconfig: parsed.text("kubeconfig").map(Into::into),
            qps,
            burst: qps.map(|_| burst.unwrap_or(10)),
            ..ConnectOptions::default()
        },
        address: Address::port(port),
        tls: Tls {
            cert: required("tls-cert", &environment.tls_cert)?,
            key: required("tls-key", &environment.tls_key)?,
            tls13_only: only_1_3,
        },
        audience: parsed.text("audience").map(str::to_owned),
        max_stream_duration: Duration::from_secs(minutes.saturating_mul(60)),
        http_endpoint: Some(parse_address(
            "http-endpoint",
            parsed.text("http-endpoint").unwrap_or(HTTP_ENDPOINT),
        )?),
        metrics_path: (!parsed.is_set("disable-metrics")).then_some(metrics),
    })
}
