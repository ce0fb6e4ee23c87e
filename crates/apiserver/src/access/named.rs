//! What a pod names, of all that a node's agent may ask for on its behalf. Read from the pod once, when it is bound: none
//! of it changes in a pod's life.

use serde_json::Value;

use super::{items, text};

/// What a pod names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// The pod's own namespace, in which all of it is.
    pub namespace: Box<str>,
    /// The account that it runs as.
    pub account: Box<str>,
    /// Secrets, by name. Whoever may write a pod may have any secret of its namespace mounted; so any mention counts.
    pub secrets: Box<[Box<str>]>,
    /// Config maps, by name.
    pub config_maps: Box<[Box<str>]>,
    /// Claims, its own ephemeral ones too.
    pub claims: Box<[Box<str>]>,
}

impl Named {
    /// All that this pod names.
    pub fn of(pod: &Value) -> Self {
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

    /// Whether a list of these has a name.
    pub(super) fn has(names: &[Box<str>], name: &str) -> bool {
        names.binary_search_by(|known| (**known).cmp(name)).is_ok()
    }
}

/// All names under these keys, wherever they are: `{key: {name: NAME}}`.
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
