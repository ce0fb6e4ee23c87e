//! Validation of a PersistentVolume's volume source.

use serde_json::Value;

use crate::kinds::{csi_node, json, meta, names};
use crate::status::Cause;

/// Volume sources in the order of validation, each with its name in the API and its name in messages.
pub(super) const SOURCES: [(&str, &str); 22] = [
    ("hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("nfs", "nfs"),
    ("rbd", "rbd"),
    ("quobyte", "quobyte"),
    ("cephfs", "cephFS"),
    ("iscsi", "iscsi"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO"),
    ("local", "local"),
    ("storageos", "storageos"),
    ("csi", "csi"),
];

pub(super) fn validate(spec: &Value, field: &str, is_inline: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut found = 0;
    for (name, named) in SOURCES {
        let Some(source) = spec.get(name) else { continue };
        let field_of = format!("{field}.{named}");
        found += 1;
        if found > 1 {
            causes.push(Cause::forbidden(&field_of, "may not specify more than 1 volume type"));
            continue;
        }
        match name {
            "csi" => causes.extend(csi(source, &field_of)),
            "hostPath" => causes.extend(host_path(source, &field_of)),
            "nfs" => causes.extend(nfs(source, &field_of)),
            "local" => {
                let path = json::text(source, "/path");
                if path.is_empty() {
                    causes.push(Cause::required(&format!("{field_of}.path"), ""));
                } else {
                    causes.extend(no_backsteps(path, &format!("{field_of}.path")));
                }
                if is_inline || !json::has(spec, "/nodeAffinity") {
                    let detail = "Local volume requires node affinity";
                    causes.push(Cause::required(&format!("{field}.nodeAffinity"), detail));
                }
            }
            _ => (),
        }
    }
    if found == 0 {
        causes.push(Cause::required(field, "must specify a volume type"));
    }
    causes
}

/// Validates a hostPath source.
pub(in crate::kinds) fn host_path(source: &Value, field: &str) -> Vec<Cause> {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let path = json::text(source, "/path");
    if path.is_empty() {
        return vec![Cause::required(&format!("{field}.path"), "")];
    }
    let mut causes: Vec<Cause> = no_backsteps(path, &format!("{field}.path")).into_iter().collect();
    let kind = json::text(source, "/type");
    if !TYPES.contains(&kind) {
        causes.push(Cause::not_supported(&format!("{field}.type"), &kind.into(), &TYPES));
    }
    causes
}

/// Rejects a path with `..` in it.
pub(in crate::kinds) fn no_backsteps(path: &str, field: &str) -> Option<Cause> {
    path.split('/')
        .any(|part| part == "..")
        .then(|| Cause::invalid(field, &path.into(), "must not contain '..'"))
}

/// Validates an NFS source.
pub(in crate::kinds) fn nfs(source: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for name in ["server", "path"] {
        if json::text(source, &format!("/{name}")).is_empty() {
            causes.push(Cause::required(&format!("{field}.{name}"), ""));
        }
    }
    let path = json::text(source, "/path");
    if !path.starts_with('/') {
        causes.push(Cause::invalid(&format!("{field}.path"), &path.into(), "must be an absolute path"));
    }
    causes
}

fn csi(source: &Value, field: &str) -> Vec<Cause> {
    let mut causes = csi_node::driver_name(json::text(source, "/driver"), &format!("{field}.driver"));
    if json::text(source, "/volumeHandle").is_empty() {
        causes.push(Cause::required(&format!("{field}.volumeHandle"), ""));
    }
    // Upstream does not validate nodeStageSecretRef.
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(secret) = source.get(name) else { continue };
        for (part, rule) in [("name", names::subdomain as meta::NameRule), ("namespace", names::label)] {
            let field = format!("{field}.{name}.{part}");
            match json::text(secret, &format!("/{part}")) {
                "" => causes.push(Cause::required(&field, "")),
                text => causes.extend(meta::invalid_causes(&field, text, rule(text, false))),
            }
        }
    }
    causes
}
