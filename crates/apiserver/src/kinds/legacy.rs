//! Defaults of in-tree volume sources, in PersistentVolumes and in pods.

use serde_json::{Map, Value};

use super::json;

/// Sets the defaults of the volume sources among these fields.
pub(super) fn default(sources: &mut Map<String, Value>) {
    let defaults: [(&str, &[(&str, Value)]); 4] = [
        ("rbd", &[("pool", "rbd".into()), ("user", "admin".into()), ("keyring", "/etc/ceph/keyring".into())]),
        ("iscsi", &[("iscsiInterface", "default".into())]),
        ("scaleIO", &[("storageMode", "ThinProvisioned".into()), ("fsType", "xfs".into())]),
        (
            "azureDisk",
            &[
                ("cachingMode", "ReadWrite".into()),
                ("kind", "Shared".into()),
                ("fsType", "ext4".into()),
                ("readOnly", false.into()),
            ],
        ),
    ];
    for (source, fields) in defaults {
        if let Some(Value::Object(source)) = sources.get_mut(source) {
            for (field, value) in fields {
                json::set_default(source, field, value.clone());
            }
        }
    }
    if let Some(Value::Object(path)) = sources.get_mut("hostPath") {
        json::set_default(path, "type", "");
    }
}
