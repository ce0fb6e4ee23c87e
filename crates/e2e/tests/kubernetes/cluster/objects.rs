//! API objects as YAML.

/// A StorageClass; `more` are additional fields, as lines.
pub(super) fn class(name: &str, driver: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {name}}}
provisioner: {driver}
allowVolumeExpansion: true
{more}
---"#
    )
}

/// A claim of a StorageClass; `more` are additional fields of its spec, in one line.
pub(super) fn claim(name: &str, class: &str, size: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, labels: {{app: test}}}}
spec:
  storageClassName: {class}
  resources: {{requests: {{storage: {size}}}}}
  {}
---"#,
        if more.contains("accessModes") {
            more.to_owned()
        } else {
            format!("accessModes: [ReadWriteOnce]\n  {more}")
        }
    )
}

/// A pod that sleeps with a claim at /data; `more` are additional fields of its spec, in one line.
pub(super) fn pod(name: &str, claim: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: test}}}}
spec:
  terminationGracePeriodSeconds: 0
  {more}
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command: [sleep, "100000"]
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
  - name: data
    persistentVolumeClaim: {{claimName: {claim}}}
---"#
    )
}

/// A node without a kubelet, with one driver.
pub(super) fn node_without_kubelet(name: &str, driver: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {{name: {name}}}
spec: {{drivers: [{{name: {driver}, nodeID: {name}, topologyKeys: []}}]}}
---"#
    )
}

/// A VolumeAttachment, as the attach/detach controller would create it.
pub(super) fn attachment(name: &str, driver: &str, volume: &str, node: &str) -> String {
    format!(
        r#"
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {{name: {name}}}
spec: {{attacher: {driver}, nodeName: {node}, source: {{persistentVolumeName: {volume}}}}}
---"#
    )
}
