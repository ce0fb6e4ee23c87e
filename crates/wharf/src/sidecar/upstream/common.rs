//! What upstream's controllers share: flags for the cluster, the lease, the pages, and the pace.

use std::collections::BTreeMap;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::controller::{Config, Election, Role};
use wharf_sidecar::process::{Listen, Sidecar};
use wharf_sidecar::{Pace, attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};

use super::{
    Becomes, CSI_ADDRESS, Environment, Flag, FlagError, Given, REMOVED, Takes, driver, flag, only_one,
    to_address,
};
use Becomes::{Ignored, Same};
use Takes::{Bool, Count, Decimal, Duration as Time, List, Text};

pub(super) static FLAGS: [Flag; 20] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("kubeconfig", Text, "", Same("")),
    flag("kube-api-qps", Decimal, "5", Same("if it is given; without it there is no limit")),
    flag("kube-api-burst", Count, "10", Same("with `--kube-api-qps`")),
    flag("leader-election", Bool, "false", Same("a lost lease stops new work and does not end the process")),
    flag(
        "leader-election-namespace",
        Text,
        "",
        Same("else `POD_NAMESPACE`, else that of the service account"),
    ),
    flag("leader-election-lease-duration", Time, "15s", Same("")),
    flag("leader-election-renew-deadline", Time, "10s", Same("")),
    flag("leader-election-retry-period", Time, "5s", Same("")),
    flag("leader-election-labels", List, "", Same("`key:value,…`")),
    flag(
        "leader-election-identity",
        Text,
        "",
        Same("of older releases; else `POD_NAME`, else the host's name"),
    ),
    flag("leader-election-type", Text, "", Ignored("of older releases; it is always a Lease")),
    flag("retry-interval-start", Time, "1s", Same("a change of the object ends the pause")),
    flag("retry-interval-max", Time, "5m0s", Same("")),
    flag("http-endpoint", Text, "", Same("also serves `/healthz`, `/readyz` and `/debug/attempts`")),
    flag("metrics-address", Text, "", Same("metrics alone; cannot be used with `--http-endpoint`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("feature-gates", List, "", Same("see below")),
    flag("version", Bool, "false", Same("prints our version")),
    flag("connection-timeout", Time, "0s", REMOVED),
];

/// The sidecar for one role, all settings as they are by default.
pub(super) fn sidecar(
    given: &Given,
    environment: &Environment,
    role: Role,
) -> Result<(Sidecar, Config), FlagError> {
    let qps = given.decimal("kube-api-qps").filter(|qps| *qps > 0.0);
    let burst = given.number("kube-api-burst").and_then(|burst| u32::try_from(burst).ok());
    let config = Config {
        connect: ConnectOptions {
            kubeconfig: given.text("kubeconfig").map(Into::into),
            qps,
            burst: qps.map(|_| burst.unwrap_or(10)),
            ..ConnectOptions::default()
        },
        roles: Some([role].into()),
        identity: given
            .text("leader-election-identity")
            .map_or_else(|| environment.identity(), str::to_owned),
        namespace: environment.namespace.clone(),
        election: given.is_set("leader-election").then(|| election(given, environment)).transpose()?,
        topology: true,
        node: None,
        provisioner: provisioner::Settings::default(),
        attacher: attacher::Settings::default(),
        resizer: resizer::Settings::default(),
        snapshotter: snapshotter::Settings::default(),
        health_monitor: health_monitor::Settings::default(),
        snapshot_controller: snapshot_controller::Settings::default(),
    };
    let sidecar = Sidecar {
        driver: Some(driver(given)?),
        registrar: None,
        probe_timeout: None,
        controller: None,
        listen: listen(given)?.into_iter().collect(),
    };
    Ok((sidecar, config))
}

/// How the lease is held.
pub(super) fn election(given: &Given, environment: &Environment) -> Result<Election, FlagError> {
    let default = Election::default();
    let mut labels = BTreeMap::new();
    for item in given.items("leader-election-labels") {
        match item.split(':').collect::<Vec<_>>()[..] {
            [key, value] => _ = labels.insert(key.to_owned(), value.to_owned()),
            _ => return Err(FlagError(format!("flag -leader-election-labels: {item:?} is not key:value"))),
        }
    }
    let namespace = given.text("leader-election-namespace").map(str::to_owned);
    let election = Election {
        namespace: namespace.or_else(|| environment.pod_namespace.clone()),
        labels,
        lease_duration: given.timeout("leader-election-lease-duration", default.lease_duration)?,
        renew_deadline: given.timeout("leader-election-renew-deadline", default.renew_deadline)?,
        retry_period: given.timeout("leader-election-retry-period", default.retry_period)?,
    };
    election.check().map_err(|error| FlagError(error.to_string()))?;
    Ok(election)
}

fn listen(given: &Given) -> Result<Option<Listen>, FlagError> {
    let metrics = Some(given.text("metrics-path").unwrap_or("/metrics").to_owned());
    let (name, text, health) = match (given.text("http-endpoint"), given.text("metrics-address")) {
        (Some(_), Some(_)) => return Err(only_one("metrics-address")),
        (Some(address), None) => ("http-endpoint", address, true),
        (None, Some(address)) => ("metrics-address", address, false),
        (None, None) => return Ok(None),
    };
    Ok(Some(Listen { address: to_address(name, text)?, health, metrics }))
}

/// How much at once. `workers` is the flag that says how many.
pub(super) fn pace(given: &Given, default: Pace, workers: &str) -> Result<Pace, FlagError> {
    let given_workers = given.number(workers).and_then(|workers| usize::try_from(workers).ok());
    let retry_start = given.duration("retry-interval-start", default.retry_start);
    Ok(Pace {
        workers: given_workers.unwrap_or(default.workers),
        timeout: given.timeout("timeout", default.timeout)?,
        // No pause at all would keep a driver that fails busy with its failures.
        retry_start: retry_start.max(Duration::from_millis(1)),
        retry_max: given.duration("retry-interval-max", default.retry_max).max(retry_start),
    })
}
