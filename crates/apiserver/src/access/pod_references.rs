//! The objects a pod references that its node agent may read. Extracted once, when the pod is bound, because none of
//! these references can change.

use serde_json::Value;

use super::{items, text};

/// The objects that a pod references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodReferences {
    /// The pod's namespace, which contains all of these objects.
    pub namespace: Box<str>,
    /// The pod's service account.
    pub account: Box<str>,
    /// Names of Secrets. A user who can create a pod can mount any Secret of its namespace, so any mention counts.
    pub secrets: Box<[Box<str>]>,
    /// Names of ConfigMaps.
    pub config_maps: Box<[Box<str>]>,
    /// Names of PersistentVolumeClaims, including those of ephemeral volumes.
    pub claims: Box<[Box<str>]>,
}

impl PodReferences {
    /// Extracts the references of a pod.
    pub fn from_pod(pod: &Value) -> Self {
        let (mut secrets, mut config_maps) = (Vec::new(), Vec::new());
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        find(spec, &["secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"], &mut secrets);
        secrets.extend(items(pod, "/spec/imagePullSecrets").map(|pull| text(pull, "/name").into()));
        find(spec, &["configMap", "configMapRef", "configMapKeyRef"], &mut config_maps);
        let claims = items(pod, "/spec/volumes").filter_map(|volume| {
            let named = text(volume, "/persistentVolumeClaim/claimName");
            if !named.is_empty() {
                return Some(named.into());
            }
            volume.get("ephemeral").filter(|ephemeral| !ephemeral.is_null())?;
            Some(format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name")).into())
        });
        Self {
            namespace: text(pod, "/metadata/namespace").into(),
            account: text(pod, "/spec/serviceAccountName").into(),
            claims: sorted(claims.collect()),
            secrets: sorted(secrets),
            config_maps: sorted(config_maps),
        }
    }

    /// Whether a sorted list contains the name.
    pub(super) fn contains(names: &[Box<str>], name: &str) -> bool {
        names.binary_search_by(|known| (**known).cmp(name)).is_ok()
    }
}

/// Collects all names under these keys at any depth: `{key: {name: NAME}}`.
fn find(value: &Value, keys: &[&str], into: &mut Vec<Box<str>>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if keys.contains(&key.as_str()) {
                    into.extend([text(inner, "/name").into(), text(inner, "/secretName").into()]);
                }
                find(inner, keys, into);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| find(inner, keys, into)),
        _ => {}
    }
}

fn sorted(mut names: Vec<Box<str>>) -> Box<[Box<str>]> {
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    names.into()
}
