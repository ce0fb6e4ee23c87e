//! node-driver-registrar, and the modes of its predecessor, driver-registrar.

use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::process::{Address, Listen, Sidecar};
use wharf_sidecar::registrar::{self, legacy};

use super::{
    CSI_ADDRESS, Environment, Flag, FlagError, NO_GO_RUNTIME, ParsedFlags, REMOVED_UPSTREAM, Support, Task,
    ValueKind, csi_endpoint, flag, mutually_exclusive, parse_address,
};
use Support::Same;
use ValueKind::{Bool, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 13] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag(
        "kubelet-registration-path",
        Text,
        "",
        Same("required, except in the two legacy modes; with it, `node-register` behaves as without a mode"),
    ),
    flag("plugin-registration-path", Text, "/registration", Same("")),
    flag(
        "timeout",
        Time,
        "1s",
        Same(
            "of each call to the driver; if the driver does not respond, the call is retried, while upstream exits",
        ),
    ),
    flag("http-endpoint", Text, "", Same("also serves `/readyz` and `/metrics`")),
    flag("health-port", Number, "0", Same("0 or less disables the HTTP endpoints")),
    flag(
        "mode",
        Text,
        "",
        Same(
            "`kubelet-registration-probe` exits with 0 at once; `kubernetes-register` and `node-register` are the two \
             legacy modes, see below; any other value registers the driver",
        ),
    ),
    flag("version", Bool, "false", Same("prints the version of wharf")),
    flag("enable-pprof", Bool, "false", NO_GO_RUNTIME),
    flag("connection-timeout", Time, "0s", REMOVED_UPSTREAM),
    flag("kubeconfig", Text, "", Same("for the two legacy modes")),
    flag(
        "driver-requires-attachment",
        Bool,
        "true",
        Same("for `kubernetes-register`; default: from the driver's capabilities"),
    ),
    flag(
        "pod-info-mount-version",
        Text,
        "",
        Same("for `kubernetes-register`; any value sets `podInfoOnMount`"),
    ),
];

/// Returns `None` if there is nothing to do.
pub(super) fn configure(parsed: &ParsedFlags, environment: &Environment) -> Result<Option<Task>, FlagError> {
    let path = parsed.text("kubelet-registration-path");
    let legacy = |mode| -> Result<Option<Task>, FlagError> {
        Ok(Some(Task::LegacyRegistrar(legacy::Config {
            driver: csi_endpoint(parsed)?,
            connect: ConnectOptions {
                kubeconfig: parsed.text("kubeconfig").map(Into::into),
                ..Default::default()
            },
            timeout: parsed.timeout("timeout", Duration::from_secs(1))?,
            mode,
        })))
    };
    match (parsed.text("mode"), path) {
        (Some("kubelet-registration-probe"), Some(_)) => Ok(None),
        (Some("kubernetes-register"), _) => legacy(legacy::Mode::CsiDriverObject {
            attach_required: parsed
                .text("driver-requires-attachment")
                .map(|_| parsed.is_set("driver-requires-attachment")),
            pod_info_on_mount: parsed.text("pod-info-mount-version").is_some(),
        }),
        (Some("node-register"), None) => match &environment.kube_node_name {
            Some(node) => legacy(legacy::Mode::NodeAnnotation { node: node.clone() }),
            None => {
                Err(FlagError("-mode=node-register needs the node's name: set KUBE_NODE_NAME".to_owned()))
            }
        },
        (_, Some(path)) => Ok(Some(Task::Sidecar(Box::new(sidecar(parsed, path)?)))),
        (_, None) => Err(FlagError("kubelet-registration-path is a required parameter".to_owned())),
    }
}

fn sidecar(parsed: &ParsedFlags, kubelet_registration_path: &str) -> Result<Sidecar, FlagError> {
    let port = parsed.number("health-port").filter(|port| *port > 0);
    let address = match (port, parsed.text("http-endpoint")) {
        (Some(_), Some(_)) => return Err(mutually_exclusive("health-port")),
        (Some(port), None) => Some(Address::port(parse_port(port)?)),
        (None, Some(address)) => Some(parse_address("http-endpoint", address)?),
        (None, None) => None,
    };
    let metrics = Some("/metrics".to_owned());
    let config = registrar::Config {
        plugin_registration_path: parsed.text("plugin-registration-path").unwrap_or("/registration").into(),
        kubelet_registration_path: kubelet_registration_path.to_owned(),
        timeout: parsed.timeout("timeout", Duration::from_secs(1))?,
    };
    Ok(Sidecar {
        driver: Some(csi_endpoint(parsed)?),
        registrar: Some(config),
        probe_timeout: None,
        controller: None,
        listen: address.map(|address| Listen { address, health: true, metrics }).into_iter().collect(),
    })
}

fn parse_port(port: i64) -> Result<u16, FlagError> {
    u16::try_from(port).map_err(|_| FlagError(format!("flag -health-port: {port} is not a port")))
}
