//! Flags common to upstream's controllers: API client, leader election, HTTP endpoints, workers and retries.

use std::collections::BTreeMap;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::WorkerOptions;
use wharf_sidecar::controller::{Config, Election, Role};
use wharf_sidecar::process::{Listen, Sidecar};

use super::{
    CSI_ADDRESS, Environment, Flag, FlagError, ParsedFlags, REMOVED_UPSTREAM, Support, ValueKind,
    csi_endpoint, flag, mutually_exclusive, parse_address,
};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Decimal, Duration as Time, List, Text};

/// Flags of every controller.
pub(super) static CONTROLLER_FLAGS: [Flag; 14] = [
    flag("kubeconfig", Text, "", Same("")),
    flag("kube-api-qps", Decimal, "5", Same("no limit if not set")),
    flag("kube-api-burst", Count, "10", Same("only with `--kube-api-qps`")),
    flag(
        "leader-election",
        Bool,
        "false",
        Same("a replica that loses its lease cancels its work, but does not exit"),
    ),
    flag(
        "leader-election-namespace",
        Text,
        "",
        Same("default: `POD_NAMESPACE`, else `NAMESPACE`, else the service account's namespace"),
    ),
    flag("leader-election-lease-duration", Time, "15s", Same("")),
    flag("leader-election-renew-deadline", Time, "10s", Same("")),
    flag("leader-election-retry-period", Time, "5s", Same("")),
    flag("retry-interval-start", Time, "1s", Same("a change of the object ends the backoff")),
    flag("retry-interval-max", Time, "5m0s", Same("")),
    flag("http-endpoint", Text, "", Same("also serves `/healthz`, `/readyz` and `/debug/attempts`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("feature-gates", List, "", Same("see Feature gates")),
    flag("version", Bool, "false", Same("prints the version of wharf")),
];

/// Flags of every controller that calls a driver.
pub(super) static DRIVER_FLAGS: [Flag; 6] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("leader-election-labels", List, "", Same("`key:value,…`")),
    flag(
        "leader-election-identity",
        Text,
        "",
        Same("from older releases; a random part is added; default: `POD_NAME`, else the host name"),
    ),
    flag("leader-election-type", Text, "", Ignored("from older releases; the lock is always a Lease")),
    flag("metrics-address", Text, "", Same("serves only metrics; mutually exclusive with `--http-endpoint`")),
    flag("connection-timeout", Time, "0s", REMOVED_UPSTREAM),
];

/// The sidecar for one role, with the default settings of the role.
pub(super) fn sidecar(
    parsed: &ParsedFlags,
    environment: &Environment,
    role: Role,
) -> Result<(Sidecar, Config), FlagError> {
    let qps = parsed.decimal("kube-api-qps").filter(|qps| *qps > 0.0);
    let burst = parsed.number("kube-api-burst").and_then(|burst| u32::try_from(burst).ok());
    let identity = parsed.text("leader-election-identity");
    let identity = identity.map_or_else(|| environment.identity(), str::to_owned);
    let config = Config {
        connect: ConnectOptions {
            kubeconfig: parsed.text("kubeconfig").map(Into::into),
            qps,
            burst: qps.map(|_| burst.unwrap_or(10)),
            ..ConnectOptions::default()
        },
        roles: Some([role].into()),
        namespace: environment.namespace.clone(),
        election: parsed.is_set("leader-election").then(|| election(parsed, environment)).transpose()?,
        ..Config::new(identity)
    };
    let sidecar = Sidecar {
        driver: Some(csi_endpoint(parsed)?),
        registrar: None,
        probe_timeout: None,
        controller: None,
        listen: listen(parsed)?.into_iter().collect(),
    };
    Ok((sidecar, config))
}

/// The leader election settings.
pub(super) fn election(parsed: &ParsedFlags, environment: &Environment) -> Result<Election, FlagError> {
    let default = Election::default();
    let mut labels = BTreeMap::new();
    for item in parsed.items("leader-election-labels") {
        match item.split(':').collect::<Vec<_>>()[..] {
            [key, value] => _ = labels.insert(key.to_owned(), value.to_owned()),
            _ => return Err(FlagError(format!("flag -leader-election-labels: {item:?} is not key:value"))),
        }
    }
    let namespace = parsed.text("leader-election-namespace").map(str::to_owned);
    let election = Election {
        namespace: namespace.or_else(|| environment.pod_namespace.clone()),
        labels,
        lease_duration: parsed.timeout("leader-election-lease-duration", default.lease_duration)?,
        renew_deadline: parsed.timeout("leader-election-renew-deadline", default.renew_deadline)?,
        retry_period: parsed.timeout("leader-election-retry-period", default.retry_period)?,
        driver_timeout: default.driver_timeout,
    };
    election.validate().map_err(|error| FlagError(error.to_string()))?;
    Ok(election)
}

fn listen(parsed: &ParsedFlags) -> Result<Option<Listen>, FlagError> {
    let metrics = Some(parsed.text("metrics-path").unwrap_or("/metrics").to_owned());
    let (name, text, health) = match (parsed.text("http-endpoint"), parsed.text("metrics-address")) {
        (Some(_), Some(_)) => return Err(mutually_exclusive("metrics-address")),
        (Some(address), None) => ("http-endpoint", address, true),
        (None, Some(address)) => ("metrics-address", address, false),
        (None, None) => return Ok(None),
    };
    Ok(Some(Listen { address: parse_address(name, text)?, health, metrics }))
}

/// Concurrency, timeout, backoff and resync interval. `workers` is the name of the program's flag for the concurrency.
/// The programs have two names for the resync interval.
pub(super) fn worker_options(
    parsed: &ParsedFlags,
    default: WorkerOptions,
    workers: &str,
) -> Result<WorkerOptions, FlagError> {
    let given_workers = parsed.number(workers).and_then(|workers| usize::try_from(workers).ok());
    let retry_start = parsed.duration("retry-interval-start", default.retry_start);
    Ok(WorkerOptions {
        workers: given_workers.unwrap_or(default.workers),
        timeout: parsed.timeout("timeout", default.timeout)?,
        // Without any backoff, a failing driver would be called in a tight loop.
        retry_start: retry_start.max(Duration::from_millis(1)),
        retry_max: parsed.duration("retry-interval-max", default.retry_max).max(retry_start),
        resync: parsed.duration("resync-period", parsed.duration("resync", default.resync)),
    })
}
