//! What a pod gets at its creation: an account and its token, a priority, and patience with nodes that fail.

use serde_json::{Value, json};

use crate::kinds::{Admission, Operation, json, service_account};
use crate::status::Refusal;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const MIRROR: &str = "kubernetes.io/config.mirror";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// An hour, and a little by which such tokens are told apart.
const TOKEN_SECONDS: i64 = 3607;

/// Admission of pods.
pub(super) fn admit(pod: &mut Value, admission: &Admission<'_>) -> Result<(), Refusal> {
    if !admission.subresource.is_empty() {
        return Ok(());
    }
    match admission.operation {
        Operation::Create => {
            account(pod, admission)?;
            tolerations(pod);
            priority(pod)
        }
        Operation::Update => {
            tolerations(pod);
            // Given at the creation; a client may leave them out.
            if let Some(old) = admission.old.and_then(|old| old.get("spec")) {
                let spec = json::map(pod, "spec");
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

fn refuse(pod: &Value, why: &str) -> Refusal {
    Refusal::forbidden(super::POD.resource(), json::text(pod, "/metadata/name"), why)
}

fn account(pod: &mut Value, admission: &Admission<'_>) -> Result<(), Refusal> {
    if json::annotation(pod, MIRROR).is_some() {
        if !json::text(pod, "/spec/serviceAccountName").is_empty() {
            return Err(refuse(pod, "a mirror pod may not reference service accounts"));
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
        let why =
            format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        return Err(refuse(pod, &why));
    };
    let spec = json::map(pod, "spec");
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

/// Five characters that hang on nothing but the pod, so that the same pod gets the same name.
fn suffix(pod: &Value) -> String {
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

/// Every container that has nothing else there gets the token of its account.
fn mount_token(pod: &mut Value) {
    let volumes = json::list(pod, "/spec/volumes");
    let existing =
        volumes.iter().map(|volume| json::text(volume, "/name")).find(|name| name.starts_with(TOKEN_VOLUME));
    let (name, is_new) = match existing {
        Some(name) => (name.to_owned(), false),
        None => (format!("{TOKEN_VOLUME}{}", suffix(pod)), true),
    };
    let spec = json::map(pod, "spec");
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

/// A pod stays five minutes on a node that is not ready or not reached, unless it says otherwise.
fn tolerations(pod: &mut Value) {
    let tolerates = |pod: &Value, key: &str| {
        json::list(pod, "/spec/tolerations").iter().any(|toleration| {
            let of = json::text(toleration, "/key");
            (of == key || of.is_empty()) && matches!(json::text(toleration, "/effect"), "" | "NoExecute")
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
    let tolerations = json::map(pod, "spec").entry("tolerations").or_insert_with(|| json!([]));
    if let Value::Array(tolerations) = tolerations {
        tolerations.extend(missing);
    }
}

/// The classes that every cluster has; others cannot be made here.
fn priority(pod: &mut Value) -> Result<(), Refusal> {
    let class = json::text(pod, "/spec/priorityClassName");
    let value: i64 = match class {
        "" => 0,
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        class => return Err(refuse(pod, &format!("no PriorityClass with name {class} was found"))),
    };
    if let Some(given) = json::number(pod, "/spec/priority").filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        );
        return Err(refuse(pod, &why));
    }
    const POLICY: &str = "PreemptLowerPriority";
    match json::text(pod, "/spec/preemptionPolicy") {
        "" | POLICY => (),
        given => {
            let why = format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
                 controller computed {POLICY} from the given PriorityClass name"
            );
            return Err(refuse(pod, &why));
        }
    }
    let spec = json::map(pod, "spec");
    spec.insert("priority".into(), value.into());
    spec.insert("preemptionPolicy".into(), POLICY.into());
    Ok(())
}
