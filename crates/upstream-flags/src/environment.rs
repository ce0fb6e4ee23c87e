//! Environment variables that configure the binary.

/// The environment variables in use. An empty variable counts as unset.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `RUST_LOG`: the log filter.
    pub rust_log: Option<String>,
    /// `POD_NAME`: name of this pod.
    pub pod_name: Option<String>,
    /// `NAMESPACE`: namespace of this pod.
    pub namespace: Option<String>,
    /// `POD_NAMESPACE`: namespace of this pod, which upstream uses for leases.
    pub pod_namespace: Option<String>,
    /// `NODE_NAME`: node of this pod.
    pub node_name: Option<String>,
    /// `KUBE_NODE_NAME`: node of this pod, under the legacy driver-registrar's name.
    pub kube_node_name: Option<String>,
    /// `KUBECONFIG`: path of a kubeconfig.
    pub kubeconfig: Option<String>,
    /// `TLS_CERT_PATH`: the certificate of the snapshot metadata service.
    pub tls_cert: Option<String>,
    /// `TLS_KEY_PATH`: the private key of that certificate.
    pub tls_key: Option<String>,
    /// The host name; in a pod, the pod's name.
    pub host_name: Option<String>,
}

impl Environment {
    /// Reads the current environment.
    pub fn read() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self {
            rust_log: variable("RUST_LOG"),
            pod_name: variable("POD_NAME"),
            namespace: variable("NAMESPACE"),
            pod_namespace: variable("POD_NAMESPACE"),
            node_name: variable("NODE_NAME"),
            kube_node_name: variable("KUBE_NODE_NAME"),
            kubeconfig: variable("KUBECONFIG"),
            tls_cert: variable("TLS_CERT_PATH"),
            tls_key: variable("TLS_KEY_PATH"),
            host_name: host_name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
        }
    }

    /// The name of this replica in leases and events. Several processes may have the same.
    pub fn identity(&self) -> String {
        let named = self.pod_name.clone().or_else(|| self.host_name.clone());
        named.unwrap_or_else(|| std::process::id().to_string())
    }
}
