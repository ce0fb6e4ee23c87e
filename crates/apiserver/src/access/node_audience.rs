//! The audiences for which a node may request tokens of a pod's service account: those that the pod's volumes need, as
//! in upstream (ServiceAccountNodeAudienceRestriction). With other audiences a node could act as the pod towards services
//! that the pod does not use.
//!
//! ```text
//! pod → projected volume → service account token (none: for the API server)
//! pod → inline volume → CSIDriver → token requests
//! pod → claim → volume → CSIDriver → token requests
//! ```
//!
//! A volume with the source of an in-tree plugin has the CSI driver that replaces the plugin.

use serde_json::Value;
use wharf_model::migration::Plugin;

use super::{Objects, items, text};

/// Allows the `TokenRequest` that is bound to this pod of the node, or returns the reason for the denial.
pub(super) fn check(node: &str, pod: &Value, request: &Value, objects: &dyn Objects) -> Result<(), String> {
    let audiences: Vec<&str> = items(request, "/spec/audiences").filter_map(Value::as_str).collect();
    let audience = match audiences[..] {
        [] => "",
        [audience] => audience,
        _ => return Err("node may only request 0 or 1 audiences".into()),
    };
    let mut problems: Vec<String> = Vec::new();
    for volume in items(pod, "/spec/volumes") {
        let mut tokens =
            items(volume, "/projected/sources").filter_map(|source| source.get("serviceAccountToken"));
        if tokens.any(|token| text(token, "/audience") == audience) {
            return Ok(());
        }
        match requests_token(pod, volume, audience, objects) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(problem) if problems.contains(&problem) => {}
            Err(problem) => problems.push(problem),
        }
    }
    match problems.as_slice() {
        [] => Err(format!(
            "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request \
             tokens for this audience"
        )),
        [problem] => Err(format!("error validating audience {audience:?}: {problem}")),
        problems => Err(format!("error validating audience {audience:?}: [{}]", problems.join(", "))),
    }
}

/// Whether the driver of the volume, if it has one, requests tokens for the audience.
fn requests_token(
    pod: &Value,
    volume: &Value,
    audience: &str,
    objects: &dyn Objects,
) -> Result<bool, String> {
    let namespace = text(pod, "/metadata/namespace");
    let is_set = |field: &str| volume.get(field).is_some_and(|source| !source.is_null());
    let driver = if is_set("ephemeral") {
        let claim = format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name"));
        driver_of(namespace, &claim, objects)?
    } else if is_set("persistentVolumeClaim") {
        driver_of(namespace, text(volume, "/persistentVolumeClaim/claimName"), objects)?
    } else {
        driver_of_source(volume)
    };
    if driver.is_empty() {
        return Ok(false);
    }
    let found = objects.get("storage.k8s.io", "csidrivers", "", &driver);
    let found = found.ok_or_else(|| format!("csidriver.storage.k8s.io {driver:?} not found"))?;
    Ok(items(&found, "/spec/tokenRequests").any(|request| text(request, "/audience") == audience))
}

/// The CSI driver of a claim's volume; empty if it is not a CSI volume.
fn driver_of(namespace: &str, claim: &str, objects: &dyn Objects) -> Result<String, String> {
    let found = objects.get("", "persistentvolumeclaims", namespace, claim);
    let found = found.ok_or_else(|| format!("persistentvolumeclaim {claim:?} not found"))?;
    let volume = text(&found, "/spec/volumeName");
    let found = objects.get("", "persistentvolumes", "", volume);
    let found = found.ok_or_else(|| format!("persistentvolume {volume:?} not found"))?;
    Ok(found.get("spec").map(driver_of_source).unwrap_or_default())
}

/// The CSI driver of a source; empty if it has none.
fn driver_of_source(volume: &Value) -> String {
    let migrated = || Plugin::of_source(volume).map(Plugin::driver).unwrap_or_default();
    match text(volume, "/csi/driver") {
        "" => migrated().to_owned(),
        driver => driver.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::testing::FakeObjects;

    fn objects_fixture() -> FakeObjects {
        let driver = |audiences: &[&str]| {
            let requests: Vec<Value> =
                audiences.iter().map(|audience| json!({"audience": audience})).collect();
            json!({"spec": {"tokenRequests": requests}})
        };
        let claim = |volume: &str| json!({"spec": {"volumeName": volume}});
        FakeObjects::default()
            .with("storage.k8s.io/csidrivers//vault.csi", driver(&["vault", "audit"]))
            .with("storage.k8s.io/csidrivers//api.csi", driver(&[""]))
            .with("storage.k8s.io/csidrivers//plain.csi", json!({"spec": {}}))
            .with("/persistentvolumeclaims/ns/bound", claim("pv"))
            .with("/persistentvolumeclaims/ns/p-scratch", claim("pv"))
            .with("/persistentvolumeclaims/ns/nfs", claim("pv-nfs"))
            .with("/persistentvolumeclaims/ns/lost", claim("gone"))
            .with("/persistentvolumeclaims/other/theirs", claim("pv"))
            .with("/persistentvolumes//pv", json!({"spec": {"csi": {"driver": "vault.csi"}}}))
            .with("/persistentvolumes//pv-nfs", json!({"spec": {"nfs": {"server": "s"}}}))
            .with("storage.k8s.io/csidrivers//file.csi.azure.com", driver(&["azure"]))
            .with("/persistentvolumeclaims/ns/share", claim("pv-share"))
            .with("/persistentvolumes//pv-share", json!({"spec": {"azureFile": {"shareName": "s"}}}))
    }

    fn request(audiences: &[&str], volumes: Value) -> Result<(), String> {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {"volumes": volumes}});
        check("n1", &pod, &json!({"spec": {"audiences": audiences}}), &objects_fixture())
    }

    fn not_found(audience: &str) -> Option<String> {
        Some(format!(
            "audience {audience:?} not found in pod spec volume, system:node:n1 is not authorized to request tokens \
             for this audience"
        ))
    }

    #[test]
    fn node_gets_tokens_only_for_audiences_of_the_volumes_of_its_pod() {
        let inline = |driver: &str| json!({"name": "v", "csi": {"driver": driver}});
        let claimed = |claim: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
        let ephemeral = |name: &str| json!({"name": name, "ephemeral": {"volumeClaimTemplate": {}}});
        let token = |audience: Value| {
            let token = json!({"serviceAccountToken": {"path": "t", "audience": audience}});
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, token]}})
        };
        let error = |text: &str| Some(text.to_owned());
        for (audiences, volumes, expected) in [
            (&[][..], json!([token(Value::Null)]), None),
            (&[""], json!([token("".into())]), None),
            (&["vault"], json!([token("vault".into())]), None),
            (&["vault"], json!([token(Value::Null)]), not_found("vault")),
            // The API server's own audience is for pods with a token for it.
            (&[], json!([token("vault".into())]), not_found("")),
            (&[], json!([]), not_found("")),
            (&[], json!([inline("api.csi")]), None),
            (&["vault"], json!([inline("vault.csi")]), None),
            (&["audit"], json!([inline("vault.csi")]), None),
            (&["other"], json!([inline("vault.csi")]), not_found("other")),
            (&["vault"], json!([inline("plain.csi")]), not_found("vault")),
            (&["vault"], json!([claimed("bound")]), None),
            (&["vault"], json!([ephemeral("scratch")]), None),
            (&["vault"], json!([claimed("nfs")]), not_found("vault")),
            // The driver that replaces an in-tree plugin.
            (&["azure"], json!([claimed("share")]), None),
            (&["azure"], json!([{"name": "v", "azureFile": {"shareName": "s"}}]), None),
            (&["azure"], json!([{"name": "v", "azureFile": null}]), not_found("azure")),
            (&["vault"], json!([claimed("share")]), not_found("vault")),
            (&["vault"], json!([{"name": "v", "emptyDir": {}}]), not_found("vault")),
            (
                &["vault", "audit"],
                json!([inline("vault.csi")]),
                error("node may only request 0 or 1 audiences"),
            ),
            (
                &["vault"],
                json!([inline("none.csi")]),
                error("error validating audience \"vault\": csidriver.storage.k8s.io \"none.csi\" not found"),
            ),
            (
                &["vault"],
                json!([claimed("theirs")]),
                error("error validating audience \"vault\": persistentvolumeclaim \"theirs\" not found"),
            ),
            (
                &["vault"],
                json!([claimed("lost"), ephemeral("none"), claimed("lost")]),
                error(
                    "error validating audience \"vault\": [persistentvolume \"gone\" not found, \
                     persistentvolumeclaim \"p-none\" not found]",
                ),
            ),
            // Another volume needs the token.
            (&["vault"], json!([claimed("lost"), inline("vault.csi")]), None),
        ] {
            assert_eq!(request(audiences, volumes.clone()).err(), expected, "{audiences:?} {volumes}");
        }
    }
}
