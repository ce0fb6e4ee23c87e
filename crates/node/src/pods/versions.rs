//! Which Secrets and ConfigMaps a pod references, and when they change. Of a Secret only name and version are kept.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer};
use wharf_model::pod::ObjectFilesSource;
use wharf_model::{ApiResource, Kind, Meta, Pod};

use super::view::roles;

/// An object's metadata without its content.
pub(super) struct Version<K> {
    metadata: Meta,
    _of: PhantomData<fn() -> K>,
}

impl<'de, K> Deserialize<'de> for Version<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Meta,
        }

        let Meta { name, namespace, uid, resource_version, .. } = Object::deserialize(deserializer)?.metadata;
        let metadata = Meta { name, namespace, uid, resource_version, ..Meta::default() };
        Ok(Self { metadata, _of: PhantomData })
    }
}

impl<K: Kind> Kind for Version<K> {
    const API: ApiResource = K::API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// An object that a pod references, in its own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    Secret(String),
    ConfigMap(String),
}

/// All Secrets and ConfigMaps that a pod uses in files or variables.
pub(super) fn references(pod: &Pod) -> BTreeSet<Reference> {
    let secret = |files: &ObjectFilesSource| {
        let name = if files.secret_name.is_empty() { &files.name } else { &files.secret_name };
        Reference::Secret(name.clone())
    };
    let config_map = |files: &ObjectFilesSource| Reference::ConfigMap(files.name.clone());
    let mut all = BTreeSet::new();
    for volume in &pod.spec.volumes {
        all.extend(volume.secret.as_deref().map(secret));
        all.extend(volume.config_map.as_deref().map(config_map));
        for source in volume.projected.iter().flat_map(|projected| &projected.sources) {
            all.extend(source.secret.as_ref().map(secret));
            all.extend(source.config_map.as_ref().map(config_map));
        }
    }
    for (_, container) in roles(pod) {
        for from in &container.env_from {
            all.extend(from.secret_ref.as_ref().map(|whole| Reference::Secret(whole.name.clone())));
            all.extend(from.config_map_ref.as_ref().map(|whole| Reference::ConfigMap(whole.name.clone())));
        }
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_deref()) {
            all.extend(source.secret_key_ref.as_ref().map(|value| Reference::Secret(value.name.clone())));
            all.extend(
                source.config_map_key_ref.as_ref().map(|value| Reference::ConfigMap(value.name.clone())),
            );
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Secret;

    use super::*;

    #[test]
    fn references_of_volumes_and_env_are_found() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "volumes": [
                {"name": "a", "secret": {"secretName": "s1"}},
                {"name": "b", "configMap": {"name": "c1"}},
                {"name": "c", "projected": {"sources": [{"secret": {"name": "s2"}}, {"configMap": {"name": "c2"}}]}},
                {"name": "d", "emptyDir": {}},
            ],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s3"}}]}],
            "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "c3"}}], "env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s4", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c4", "key": "k"}}},
                {"name": "C", "value": "x"},
            ]}],
        }}))
        .unwrap();
        let mut expected = BTreeSet::new();
        for number in 1..=4 {
            expected.insert(Reference::Secret(format!("s{number}")));
            expected.insert(Reference::ConfigMap(format!("c{number}")));
        }
        assert_eq!(references(&pod), expected);
    }

    #[test]
    fn secret_content_is_dropped() {
        let secret = json!({
            "metadata": {"name": "s", "annotations": {"last": "hunter2"}}, "data": {"password": "aHVudGVyMg=="},
        });
        let version: Version<Secret> = serde_json::from_value(secret).unwrap();
        assert_eq!(version.meta().name, "s");
        assert!(!format!("{:?}", version.meta()).contains("hunter2"));
    }
}
