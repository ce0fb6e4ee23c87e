//! Discovery: groups, versions and resources, in the unaggregated and the aggregated form.
//!
//! All documents are derived from [`kinds`](crate::kinds).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::kinds::{KINDS, Kind, Subresource};

/// The media type of aggregated discovery. Clients check the response for it.
pub(crate) const AGGREGATED_MEDIA_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The Kubernetes version whose API is served.
const MINOR: &str = "34";
const GIT_VERSION: &str = concat!("v1.34.2+wharf-", env!("CARGO_PKG_VERSION"));

/// Groups with their versions, in the order of [`KINDS`]: the core group is first.
fn group_versions() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for kind in KINDS {
        if !all.contains(&(kind.group, kind.version)) {
            all.push((kind.group, kind.version));
        }
    }
    all
}

/// The document at `/version`.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": GIT_VERSION, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
        "emulationMajor": "1", "emulationMinor": MINOR, "minCompatibilityMajor": "1", "minCompatibilityMinor": "33",
    })
}

/// The architecture, as Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The document at `/api`.
pub(crate) fn core_versions() -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    })
}

/// The document at `/apis`.
pub(crate) fn groups() -> Value {
    let groups: Vec<Value> = group_versions()
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, version)| group_entry(group, version))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The document at `/apis/GROUP`.
pub(crate) fn group(name: &str) -> Option<Value> {
    let (group, version) =
        group_versions().into_iter().find(|(group, _)| !group.is_empty() && *group == name)?;
    let mut entry = group_entry(group, version);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

fn group_entry(group: &str, version: &str) -> Value {
    let version_entry = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version_entry], "preferredVersion": version_entry})
}

/// The document at `/api/v1` or `/apis/GROUP/VERSION`.
pub(crate) fn resources(group: &str, version: &str) -> Option<Value> {
    let kinds: Vec<&Kind> =
        KINDS.iter().copied().filter(|kind| kind.group == group && kind.version == version).collect();
    let first = kinds.first()?;
    let mut all = Vec::new();
    for kind in &kinds {
        let mut resource = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": verbs(kind),
        });
        if kind.is_stored() {
            resource["storageVersionHash"] = storage_version_hash(kind).into();
        }
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        all.push(resource);
        for Subresource { name, group, version, kind: body_kind, verbs } in kind.subresources {
            let mut resource = json!({
                "name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": body_kind, "verbs": verbs,
            });
            if (*group, *version) != (kind.group, kind.version) {
                resource["group"] = json!(group);
                resource["version"] = json!(version);
            }
            all.push(resource);
        }
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": first.api_version(), "resources": all});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// The verbs in upstream's order, which differs for custom resources.
fn verbs(kind: &Kind) -> Vec<&'static str> {
    if !kind.group.ends_with("snapshot.storage.k8s.io") {
        return kind.verbs.to_vec();
    }
    const ORDER: [&str; 8] =
        ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    ORDER.into_iter().filter(|verb| kind.verbs.contains(verb)).collect()
}

/// A hash of upstream's storage version. Clients use it to detect that two resources are stored as one.
fn storage_version_hash(kind: &Kind) -> String {
    let (group, version) = match (kind.group, kind.plural) {
        ("events.k8s.io", _) => ("", "v1"),
        ("storage.k8s.io", "volumeattributesclasses") => (kind.group, "v1beta1"),
        _ => (kind.group, kind.version),
    };
    let hash = Sha256::digest(format!("{group}/{version}/{}", kind.kind));
    STANDARD.encode(&hash[..8])
}

/// Aggregated discovery of the core group (`/api`) or of all other groups (`/apis`).
pub(crate) fn aggregated(core: bool) -> Bytes {
    let groups = group_versions().into_iter().filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, version)| {
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = group.into();
            }
            let kinds = KINDS.iter().filter(|kind| kind.group == group && kind.version == version);
            let resources: Vec<Value> = kinds.map(|kind| aggregated_resource(kind)).collect();
            json!({
                "metadata": metadata,
                "versions": [{"version": version, "resources": resources, "freshness": "Current"}],
            })
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    list.to_string().into()
}

fn aggregated_resource(kind: &Kind) -> Value {
    let mut resource = json!({
        "resource": kind.plural, "singularResource": kind.singular, "verbs": verbs(kind),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|Subresource { name, group, version, kind, verbs }| {
            let response_kind = json!({"group": group, "version": version, "kind": kind});
            json!({"subresource": name, "responseKind": response_kind, "verbs": verbs})
        })
        .collect();
    if !subresources.is_empty() {
        resource["subresources"] = subresources.into();
    }
    resource
}

/// The document at `/`: all paths.
pub(crate) fn paths() -> Value {
    let mut paths: Vec<String> = vec!["/api".into(), "/apis".into()];
    for (group, version) in group_versions() {
        if group.is_empty() {
            paths.push(format!("/api/{version}"));
        } else {
            paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
        }
    }
    let others = ["/.well-known/openid-configuration", "/healthz", "/livez", "/openapi/v2", "/openapi/v3"];
    paths.extend(others.map(Into::into));
    paths.extend(["/metrics", "/openid/v1/jwks", "/readyz", "/version"].map(Into::into));
    paths.sort_unstable();
    json!({"paths": paths})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_the_same_resources() {
        let mut old = Vec::new();
        for (group, version) in group_versions() {
            for resource in resources(group, version).unwrap()["resources"].as_array().unwrap() {
                old.push(format!("{group}/{version}/{}", resource["name"].as_str().unwrap()));
            }
        }
        let mut new = Vec::new();
        for core in [true, false] {
            let list: Value = serde_json::from_slice(&aggregated(core)).unwrap();
            for item in list["items"].as_array().unwrap() {
                let group = item["metadata"]["name"].as_str().unwrap_or("");
                let version = &item["versions"][0];
                for resource in version["resources"].as_array().unwrap() {
                    let name = resource["resource"].as_str().unwrap();
                    let at = format!("{group}/{}/{name}", version["version"].as_str().unwrap());
                    new.push(at.clone());
                    for subresource in resource["subresources"].as_array().into_iter().flatten() {
                        new.push(format!("{at}/{}", subresource["subresource"].as_str().unwrap()));
                    }
                }
            }
        }
        assert_eq!(old, new);
        assert!(old.contains(&"/v1/pods/status".to_owned()), "{old:?}");
        assert!(old.contains(&"storage.k8s.io/v1/storageclasses".to_owned()), "{old:?}");
    }

    #[test]
    fn storage_version_hashes_match_upstream() {
        let hash = |group, plural| storage_version_hash(crate::kinds::find(group, "v1", plural).unwrap());
        assert_eq!(hash("storage.k8s.io", "csidrivers"), "hL6j/rwBV5w=");
        assert_eq!(hash("events.k8s.io", "events"), "r2yiGXH7wu8=");
        assert_eq!(hash("storage.k8s.io", "volumeattributesclasses"), "Bl3MtjZ/n/s=");
    }

    #[test]
    fn groups_have_preferred_version() {
        let groups = groups();
        let names: Vec<&str> = groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["name"].as_str().unwrap())
            .collect();
        assert!(names.contains(&"storage.k8s.io") && !names.contains(&""), "{names:?}");
        assert_eq!(group("storage.k8s.io").unwrap()["preferredVersion"]["groupVersion"], "storage.k8s.io/v1");
        assert_eq!(group("apps"), None);
        assert_eq!(group(""), None);
        assert_eq!(resources("storage.k8s.io", "v1beta1"), None);
    }
}
