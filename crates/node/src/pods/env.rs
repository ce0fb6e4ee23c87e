//! Environment of a container: its own variables, those from Secrets and ConfigMaps, downward API fields, and
//! expansion of `$(NAME)` references.

use std::collections::{BTreeMap, BTreeSet};

use wharf_cluster::{ApiError, Cluster};
use wharf_model::container::{Container, EnvVarSource};
use wharf_model::{ConfigMap, Key, Node, Pod, Quantity, Secret};

use super::fields::{self, FieldError};

/// Why a container's environment cannot be built. Contains no values.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnvError {
    /// The object does not exist.
    #[error("{kind} {name:?} not found")]
    NoObject { kind: &'static str, name: String },
    /// The object has no such key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey { kind: &'static str, namespace: String, name: String, key: String },
    /// The value is not UTF-8.
    #[error(
        "key {key} in {kind} {namespace}/{name} is not valid UTF-8 and cannot be used as an environment variable"
    )]
    NotText { kind: &'static str, namespace: String, name: String, key: String },
    /// An unsupported downward API field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// An API request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Fetched inputs of an environment.
#[derive(Default)]
pub(super) struct Found {
    /// By name; `None` if the object does not exist.
    secrets: BTreeMap<String, Option<Secret>>,
    config_maps: BTreeMap<String, Option<ConfigMap>>,
    allocatable: BTreeMap<String, Quantity>,
}

/// Inputs that do not come from the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeEnv {
    /// The node's address.
    pub(super) address: String,
    /// Default variables of every container.
    pub(super) common: Vec<(String, String)>,
}

/// Fetches everything that the container's environment references.
pub(super) async fn gather(cluster: &Cluster, pod: &Pod, container: &Container) -> Result<Found, EnvError> {
    let mut found = Found::default();
    let key = |name: &str| Key { namespace: pod.metadata.namespace.clone(), name: name.to_owned() };
    let sources = || container.env.iter().filter_map(|variable| variable.value_from.as_deref());
    let secrets = sources().filter_map(|source| source.secret_key_ref.as_ref().map(|value| &value.name));
    let whole =
        container.env_from.iter().filter_map(|from| from.secret_ref.as_ref().map(|whole| &whole.name));
    for name in secrets.chain(whole).collect::<BTreeSet<_>>() {
        found.secrets.insert(name.clone(), cluster.get(&key(name)).await?);
    }
    let maps = sources().filter_map(|source| source.config_map_key_ref.as_ref().map(|value| &value.name));
    let whole =
        container.env_from.iter().filter_map(|from| from.config_map_ref.as_ref().map(|whole| &whole.name));
    for name in maps.chain(whole).collect::<BTreeSet<_>>() {
        found.config_maps.insert(name.clone(), cluster.get(&key(name)).await?);
    }
    if sources().any(|source| source.resource_field_ref.is_some()) {
        let node = cluster.get::<Node>(&Key::cluster(pod.node_name.as_str())).await?;
        found.allocatable = node.map(|node| node.status.allocatable.clone()).unwrap_or_default();
    }
    Ok(found)
}

/// Builds the environment.
pub(super) fn environment(
    pod: &Pod,
    container: &Container,
    found: &Found,
    node_env: &NodeEnv,
) -> Result<BTreeMap<String, String>, EnvError> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    for from in &container.env_from {
        let (values, wanted, kind) = match (&from.secret_ref, &from.config_map_ref) {
            (Some(wanted), _) => {
                let secret = found.secrets.get(&wanted.name).and_then(Option::as_ref);
                (secret.map(|secret| text(secret.data.iter())), wanted, "secret")
            }
            (None, Some(wanted)) => {
                let map = found.config_maps.get(&wanted.name).and_then(Option::as_ref);
                (map.map(|map| text(map.iter())), wanted, "configmap")
            }
            (None, None) => continue,
        };
        match values {
            // Invalid variable names are skipped, as in kubelet.
            Some(values) => variables.extend(
                values
                    .into_iter()
                    .map(|(key, value)| (format!("{}{key}", from.prefix), value))
                    .filter(|(name, _)| is_name(name)),
            ),
            None if wanted.optional => {}
            None => return Err(EnvError::NoObject { kind, name: wanted.name.clone() }),
        }
    }
    let common: BTreeMap<&str, &str> =
        node_env.common.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for variable in &container.env {
        let value = match &variable.value_from {
            None => Some(expand(&variable.value, |name| {
                variables.get(name).map(String::as_str).or(common.get(name).copied())
            })),
            Some(source) => value_of(pod, container, source, found, &node_env.address)?,
        };
        if let Some(value) = value {
            variables.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in common {
        variables.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    Ok(variables)
}

/// Values that are UTF-8; others are skipped.
fn text<'a>(values: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<(String, String)> {
    let text = |(key, value): (&str, &[u8])| Some((key.to_owned(), String::from_utf8(value.to_vec()).ok()?));
    values.filter_map(text).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

/// `None` if an optional value is missing.
fn value_of(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    found: &Found,
    address: &str,
) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return Ok(Some(fields::field(pod, &field.field_path, address)?));
    }
    if let Some(wanted) = &source.resource_field_ref {
        return Ok(Some(fields::resource(pod, Some(&container.name), wanted, &found.allocatable)?));
    }
    let secret = source.secret_key_ref.as_ref().map(|wanted| {
        let secret = found.secrets.get(&wanted.name).and_then(Option::as_ref);
        (wanted, ("secret", "Secret"), secret.map(|secret| secret.data.get(&wanted.key).map(<[u8]>::to_vec)))
    });
    let map = source.config_map_key_ref.as_ref().map(|wanted| {
        let map = found.config_maps.get(&wanted.name).and_then(Option::as_ref);
        (wanted, ("configmap", "ConfigMap"), map.map(|map| map.get(&wanted.key).map(<[u8]>::to_vec)))
    });
    let Some((wanted, (kind, proper), value)) = secret.or(map) else { return Ok(Some(String::new())) };
    let namespace = || pod.metadata.namespace.clone().unwrap_or_default();
    let (name, key) = (wanted.name.clone(), wanted.key.clone());
    match value {
        Some(Some(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(EnvError::NotText { kind: proper, namespace: namespace(), name, key }),
        },
        Some(None) | None if wanted.optional => Ok(None),
        Some(None) => Err(EnvError::NoKey { kind: proper, namespace: namespace(), name, key }),
        None => Err(EnvError::NoObject { kind, name }),
    }
}

/// Expands `$(NAME)` to the variable's value and `$$` to a dollar sign; unknown references stay unchanged.
pub(super) fn expand<'a>(text: &str, value: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match (after.strip_prefix('$'), after.strip_prefix('(')) {
            (Some(after), _) => {
                expanded.push('$');
                after
            }
            (None, Some(name)) if name.contains(')') => {
                let (name, after) = name.split_once(')').unwrap_or((name, ""));
                match value(name) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.push_str(&format!("$({name})")),
                }
                after
            }
            _ => {
                expanded.push('$');
                after
            }
        };
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found() -> Found {
        let secret = json!({"data": {"user": "bWU=", "raw": "/w=="}});
        let map = json!({"data": {"color": "red", "not=a name": "x"}});
        Found {
            secrets: BTreeMap::from([
                ("s".to_owned(), Some(serde_json::from_value(secret).unwrap())),
                ("absent".to_owned(), None),
            ]),
            config_maps: BTreeMap::from([("m".to_owned(), Some(serde_json::from_value(map).unwrap()))]),
            allocatable: BTreeMap::from([("cpu".to_owned(), "2".parse().unwrap())]),
        }
    }

    fn made(container: Value) -> Result<Vec<String>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container]},
        }))
        .unwrap();
        let node_env = NodeEnv {
            address: "10.0.0.1".into(),
            common: vec![("HOST".into(), "h".into()), ("OTHER".into(), "o".into())],
        };
        let made = environment(&pod, &pod.spec.containers[0], &found(), &node_env);
        let made = made.map_err(|error| error.to_string())?;
        Ok(made
            .into_iter()
            .filter(|(name, _)| name != "OTHER")
            .map(|(name, value)| format!("{name}={value}"))
            .collect())
    }

    /// kubelet's order: whole objects, then single variables, each seeing those before it; defaults only where unset.
    #[test]
    fn environment_follows_kubelets_order() {
        let from = |source: Value| json!({"name": "c", "env": [{"name": "A", "valueFrom": source}]});
        for (container, expected) in [
            (json!({"name": "c"}), vec!["HOST=h"]),
            (json!({"name": "c", "env": [{"name": "HOST", "value": "mine"}]}), vec!["HOST=mine"]),
            (
                json!({"name": "c", "env": [
                    {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(HOST)-$(C)-$$(A)"}, {"name": "C", "value": "3"},
                ]}),
                vec!["A=1", "B=1-h-$(C)-$(A)", "C=3", "HOST=h"],
            ),
            (
                json!({"name": "c", "envFrom": [{"prefix": "X_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}],
                       "env": [{"name": "user", "value": "you"}]}),
                vec!["HOST=h", "X_color=red", "user=you"],
            ),
            (from(json!({"fieldRef": {"fieldPath": "status.podIP"}})), vec!["A=10.0.0.1", "HOST=h"]),
            (
                from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}})),
                vec!["A=2000", "HOST=h"],
            ),
            (from(json!({"secretKeyRef": {"name": "s", "key": "user"}})), vec!["A=me", "HOST=h"]),
            (from(json!({"configMapKeyRef": {"name": "m", "key": "color"}})), vec!["A=red", "HOST=h"]),
            (
                from(json!({"secretKeyRef": {"name": "absent", "key": "user", "optional": true}})),
                vec!["HOST=h"],
            ),
            (from(json!({"secretKeyRef": {"name": "s", "key": "x", "optional": true}})), vec!["HOST=h"]),
        ] {
            assert_eq!(made(container.clone()).unwrap(), expected, "{container}");
        }
        for (source, expected) in [
            (json!({"secretKeyRef": {"name": "absent", "key": "user"}}), "secret \"absent\" not found"),
            (json!({"secretKeyRef": {"name": "s", "key": "x"}}), "couldn't find key x in Secret n/s"),
            (json!({"configMapKeyRef": {"name": "m", "key": "x"}}), "couldn't find key x in ConfigMap n/m"),
            (
                json!({"secretKeyRef": {"name": "s", "key": "raw"}}),
                "key raw in Secret n/s is not valid UTF-8 and cannot be used as an environment variable",
            ),
        ] {
            assert_eq!(made(from(source)).unwrap_err(), expected);
        }
        let whole = json!({"name": "c", "envFrom": [{"secretRef": {"name": "absent"}}]});
        assert_eq!(made(whole).unwrap_err(), "secret \"absent\" not found");
    }

    /// The cases of upstream's expansion: invalid references stay unchanged.
    #[test]
    fn references_are_expanded_like_upstream() {
        let value = |name: &str| match name {
            "A" => Some("1"),
            "E" => Some(""),
            _ => None,
        };
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(E)", ""),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("$", "$"),
            ("a$$", "a$"),
            ("", ""),
        ] {
            assert_eq!(expand(text, value), expected, "{text}");
        }
    }
}
