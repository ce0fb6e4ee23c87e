//! What a pod's manifest, or whoever starts us, says by environment variables.

/// The variables that count; an empty one is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    /// `RUST_LOG`: what is logged.
    pub(crate) rust_log: Option<String>,
    /// `POD_NAME`: the pod we run in.
    pub(crate) pod_name: Option<String>,
    /// `NAMESPACE`: its namespace.
    pub(crate) namespace: Option<String>,
    /// `POD_NAMESPACE`: the same, where upstream looks for the namespace of leases.
    pub(crate) pod_namespace: Option<String>,
    /// `NODE_NAME`: the node we run on.
    pub(crate) node_name: Option<String>,
    /// `KUBE_NODE_NAME`: the same, as the old driver-registrar called it.
    pub(crate) kube_node_name: Option<String>,
    /// `KUBECONFIG`: credentials for the cluster.
    pub(crate) kubeconfig: Option<String>,
    /// `TLS_CERT_PATH`: the certificate of the snapshot metadata service.
    pub(crate) tls_cert: Option<String>,
    /// `TLS_KEY_PATH`: its key.
    pub(crate) tls_key: Option<String>,
    /// The host's name, which in a pod is the pod's.
    pub(crate) host_name: Option<String>,
}

impl Environment {
    /// As it is now.
    pub(crate) fn read() -> Self {
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

    /// Who we are among replicas.
    pub(crate) fn identity(&self) -> String {
        let named = self.pod_name.clone().or_else(|| self.host_name.clone());
        named.unwrap_or_else(|| std::process::id().to_string())
    }
}
