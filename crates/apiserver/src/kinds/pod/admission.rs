//! Pod admission: service account and token volume, priority, and default tolerations for failing nodes.

use serde_json::{Value, json};

use crate::kinds::{Admission, Operation, json, service_account};
use crate::status::StatusError;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const MIRROR: &str = "kubernetes.io/config.mirror";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// One hour and seven seconds: upstream recognizes injected tokens by this lifetime.
const TOKEN_SECONDS: i64 = 3607;

/// Mutating admission of pods.
pub(super) fn admit(pod: &mut Value, admission: &Admission<'_>) -> Result<(), StatusError> {
    if !admission.subresource.is_empty() {
        return Ok(());
    }
    match admission.operation {
        Operation::Create => {
            service_account(pod, admission)?;
            add_default_tolerations(pod);
            set_priority(pod)
        }
        Operation::Update => {
            add_default_tolerations(pod);
            // Admission set these at creation. Clients may omit them in updates.
            if let Some(old) = admission.old.and_then(|old| old.get("spec")) {
                let spec = json::object_mut(pod, "spec");
                for field in ["priority", "preemptionPolicy"] {
                    if let (None, Some(value)) = (spec.get(field), old.get(field)) {
                        spec.insert(field.into(), value.clone());
                    }
                }
            }
            Ok(())
        }
        Operation::Delete => Ok(()),
    }
}

fn forbidden(pod: &Value, reason: &str) -> StatusError {
    StatusError::forbidden(super::POD.resource(), json::text(pod, "/metadata/name"), reason)
}

fn service_account(pod: &mut Value, admission: &Admission<'_>) -> Result<(), StatusError> {
    if json::annotation(pod, MIRROR).is_some() {
        if !json::text(pod, "/spec/serviceAccountName").is_empty() {
            return Err(forbidden(pod, "a mirror pod may not reference service accounts"));
        }
        return Ok(());
    }
    let name = match json::text(pod, "/spec/serviceAccountName") {
        "" => "default",
        name => name,
    }
    .to_owned();
    let namespace = json::text(pod, "/metadata/namespace");
    let Some(account) = admission.lookup.get(&service_account::SERVICE_ACCOUNT, namespace, &name) else {
        let reason =
            format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        return Err(forbidden(pod, &reason));
    };
    let spec = json::object_mut(pod, "spec");
    spec.insert("serviceAccountName".into(), name.as_str().into());
    spec.insert("serviceAccount".into(), name.into());
    let automount =
        spec.get("automountServiceAccountToken").or_else(|| account.get("automountServiceAccountToken"));
    let automount = automount.and_then(Value::as_bool).unwrap_or(true);
    if let (None, Some(secrets)) = (spec.get("imagePullSecrets"), account.get("imagePullSecrets")) {
        spec.insert("imagePullSecrets".into(), secrets.clone());
    }
    if automount {
        mount_token(pod);
    }
    Ok(())
}

/// Five characters derived from the pod only, so that the same pod gets the same volume name.
fn volume_name_suffix(pod: &Value) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // FNV-1a.
    let mut hash = pod.to_string().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut text = String::new();
    for _ in 0..5 {
        text.push(char::from(LETTERS[(hash % LETTERS.len() as u64) as usize]));
        hash /= LETTERS.len() as u64;
    }
    text
}

/// Mounts the service account token into every container that mounts nothing else at that path.
fn mount_token(pod: &mut Value) {
    let volumes = json::list(pod, "/spec/volumes");
    let existing =
        volumes.iter().map(|volume| json::text(volume, "/name")).find(|name| name.starts_with(TOKEN_VOLUME));
    let (name, is_new) = match existing {
        Some(name) => (name.to_owned(), false),
        None => (format!("{TOKEN_VOLUME}{}", volume_name_suffix(pod)), true),
    };
    let spec = json::object_mut(pod, "spec");
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let mounts = json::list(container, "/volumeMounts");
            if mounts.iter().any(|mount| json::text(mount, "/mountPath") == TOKEN_PATH) {
                continue;
            }
            needed = true;
            let mount = json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH});
            match container.get_mut("volumeMounts") {
                Some(Value::Array(mounts)) => mounts.push(mount),
                _ => container["volumeMounts"] = json!([mount]),
            }
        }
    }
    if !is_new || !needed {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}});
    match spec.get_mut("volumes") {
        Some(Value::Array(volumes)) => volumes.push(volume),
        _ => {
            spec.insert("volumes".into(), json!([volume]));
        }
    }
}

/// Adds tolerations that keep a pod for five minutes on a node that is not ready or unreachable, unless the pod sets
/// its own.
fn add_default_tolerations(pod: &mut Value) {
    let tolerates = |pod: &Value, key: &str| {
        json::list(pod, "/spec/tolerations").iter().any(|toleration| {
            let tolerated = json::text(toleration, "/key");
            (tolerated == key || tolerated.is_empty())
                && matches!(json::text(toleration, "/effect"), "" | "NoExecute")
        })
    };
    let missing: Vec<Value> = [NOT_READY, UNREACHABLE]
        .iter()
        .filter(|key| !tolerates(pod, key))
        .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}))
        .collect();
    if missing.is_empty() {
        return;
    }
    let tolerations = json::object_mut(pod, "spec").entry("tolerations").or_insert_with(|| json!([]));
    if let Value::Array(tolerations) = tolerations {
        tolerations.extend(missing);
    }
}

/// Sets the priority. Only the built-in PriorityClasses exist: PriorityClass objects are not served.
fn set_priority(pod: &mut Value) -> Result<(), StatusError> {
    let class = json::text(pod, "/spec/priorityClassName");
    let value: i64 = match class {
        "" => 0,
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        class => return Err(forbidden(pod, &format!("no PriorityClass with name {class} was found"))),
    };
    if let Some(given) = json::number(pod, "/spec/priority").filter(|given| *given != value) {
        let reason = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        );
        return Err(forbidden(pod, &reason));
    }
    const POLICY: &str = "PreemptLowerPriority";
    match json::text(pod, "/spec/preemptionPolicy") {
        "" | POLICY => (),
        given => {
            let reason = format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
                 controller computed {POLICY} from the given PriorityClass name"
            );
            return Err(forbidden(pod, &reason));
        }
    }
    let spec = json::object_mut(pod, "spec");
    spec.insert("priority".into(), value.into());
    spec.insert("preemptionPolicy".into(), POLICY.into());
    Ok(())
}
