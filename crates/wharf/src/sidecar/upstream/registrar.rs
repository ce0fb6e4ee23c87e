//! node-driver-registrar, and the modes of the driver-registrar that it was before its first release.

use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::process::{Address, Listen, Sidecar};
use wharf_sidecar::registrar::{self, legacy};

use super::{
    Becomes, CSI_ADDRESS, Environment, Flag, FlagError, Given, NO_GO, REMOVED, Takes, Work, driver, flag,
    only_one, to_address,
};
use Becomes::Same;
use Takes::{Bool, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 13] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag(
        "kubelet-registration-path",
        Text,
        "",
        Same(
            "required, but not in the two old modes, where it turns `node-register` into what is done without a mode",
        ),
    ),
    flag("plugin-registration-path", Text, "/registration", Same("")),
    flag(
        "timeout",
        Time,
        "1s",
        Same(
            "for each question to the driver; a driver that does not answer is asked again, where upstream exits",
        ),
    ),
    flag("http-endpoint", Text, "", Same("also serves `/readyz` and `/metrics`")),
    flag("health-port", Number, "0", Same("0 or less: no pages")),
    flag(
        "mode",
        Text,
        "",
        Same(
            "`kubelet-registration-probe` exits with 0 at once; `kubernetes-register` and `node-register` are the two \
             old modes, see below; any other value registers",
        ),
    ),
    flag("version", Bool, "false", Same("prints our version")),
    flag("enable-pprof", Bool, "false", NO_GO),
    flag("connection-timeout", Time, "0s", REMOVED),
    flag("kubeconfig", Text, "", Same("for the two old modes")),
    flag(
        "driver-requires-attachment",
        Bool,
        "true",
        Same("for `kubernetes-register`; if it is not given, the driver's capabilities say it"),
    ),
    flag(
        "pod-info-mount-version",
        Text,
        "",
        Same("for `kubernetes-register`: any version asks for pods' names"),
    ),
];

/// `None`: there is nothing to do.
pub(super) fn asked(given: &Given, environment: &Environment) -> Result<Option<Work>, FlagError> {
    let path = given.text("kubelet-registration-path");
    let legacy = |mode| -> Result<Option<Work>, FlagError> {
        Ok(Some(Work::Legacy(legacy::Config {
            driver: driver(given)?,
            connect: ConnectOptions {
                kubeconfig: given.text("kubeconfig").map(Into::into),
                ..Default::default()
            },
            timeout: given.timeout("timeout", Duration::from_secs(1))?,
            mode,
        })))
    };
    match (given.text("mode"), path) {
        (Some("kubelet-registration-probe"), Some(_)) => Ok(None),
        (Some("kubernetes-register"), _) => legacy(legacy::Mode::Describe {
            attach_required: given
                .text("driver-requires-attachment")
                .map(|_| given.is_set("driver-requires-attachment")),
            pod_info_on_mount: given.text("pod-info-mount-version").is_some(),
        }),
        (Some("node-register"), None) => match &environment.kube_node_name {
            Some(node) => legacy(legacy::Mode::NodeId { node: node.clone() }),
            None => {
                Err(FlagError("-mode=node-register needs the node's name: set KUBE_NODE_NAME".to_owned()))
            }
        },
        (_, Some(path)) => Ok(Some(Work::Sidecar(Box::new(sidecar(given, path)?)))),
        (_, None) => Err(FlagError("kubelet-registration-path is a required parameter".to_owned())),
    }
}

fn sidecar(given: &Given, kubelet_registration_path: &str) -> Result<Sidecar, FlagError> {
    let port = given.number("health-port").filter(|port| *port > 0);
    let address = match (port, given.text("http-endpoint")) {
        (Some(_), Some(_)) => return Err(only_one("health-port")),
        (Some(port), None) => Some(Address::port(to_port(port)?)),
        (None, Some(address)) => Some(to_address("http-endpoint", address)?),
        (None, None) => None,
    };
    let metrics = Some("/metrics".to_owned());
    let config = registrar::Config {
        plugin_registration_path: given.text("plugin-registration-path").unwrap_or("/registration").into(),
        kubelet_registration_path: kubelet_registration_path.to_owned(),
        timeout: given.timeout("timeout", Duration::from_secs(1))?,
    };
    Ok(Sidecar {
        driver: Some(driver(given)?),
        registrar: Some(config),
        probe_timeout: None,
        controller: None,
        listen: address.map(|address| Listen { address, health: true, metrics }).into_iter().collect(),
    })
}

fn to_port(port: i64) -> Result<u16, FlagError> {
    u16::try_from(port).map_err(|_| FlagError(format!("flag -health-port: {port} is not a port")))
}
