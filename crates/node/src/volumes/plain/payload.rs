//! Computes a volume's files from its sources: pure functions.

use std::collections::BTreeMap;

use wharf_model::pod::{DownwardApi, ObjectFilesSource, PodVolume, TokenProjection};
use wharf_model::{Pod, Quantity};

use super::PlainError;
use super::atomic::{File, Payload, is_inside};
use crate::pods::fields;

const MODE: u32 = 0o644;
/// Mode of a token with a known owner.
const PRIVATE: u32 = 0o600;

/// A source of a volume's files, with the fetched data.
pub(super) enum Source {
    /// A Secret's data; `None` if it does not exist.
    Secret(ObjectFilesSource, Option<BTreeMap<String, Vec<u8>>>),
    /// A ConfigMap's data; `None` if it does not exist.
    ConfigMap(ObjectFilesSource, Option<BTreeMap<String, Vec<u8>>>),
    /// Downward API fields, and the node's allocatable resources.
    Downward(DownwardApi, BTreeMap<String, Quantity>),
    /// A token of the pod's service account.
    Token(TokenProjection, String),
}

/// Mode of files for which none is given.
pub(super) fn default_mode(volume: &PodVolume) -> u32 {
    let PodVolume { secret, config_map, projected, downward_api, .. } = volume;
    let files = secret.as_ref().or(config_map.as_ref());
    let mode = files
        .and_then(|files| files.default_mode)
        .or(projected.as_ref().and_then(|projected| projected.default_mode))
        .or(downward_api.as_ref().and_then(|files| files.default_mode));
    mode.map_or(MODE, bits)
}

/// The pod's fsGroup.
pub(super) fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec.security_context.as_ref()?.fs_group.and_then(|gid| u32::try_from(gid).ok())
}

/// The user of all containers, if they share one.
fn only_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|container| {
        container.security_context.as_ref().and_then(|context| context.run_as_user).or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

fn bits(mode: i32) -> u32 {
    mode as u32 & 0o777
}

/// The files. If two sources have the same path, the later one wins.
pub(super) fn payload(pod: &Pod, sources: &[Source], default_mode: u32) -> Result<Payload, PlainError> {
    let mut files = Payload::new();
    let mut add = |path: &str, bytes: Vec<u8>, mode: u32, uid: Option<u32>| {
        if !is_inside(path) {
            return Err(PlainError::Path { path: path.to_owned() });
        }
        files.insert(path.to_owned(), File { bytes, mode, uid });
        Ok(())
    };
    for source in sources {
        match source {
            Source::Secret(wanted, found) | Source::ConfigMap(wanted, found) => {
                let (kind, short) = match source {
                    Source::Secret(..) => ("secret", "secret"),
                    _ => ("configmap", "config"),
                };
                let nothing = BTreeMap::new();
                let values = match found {
                    Some(values) => values,
                    None if wanted.optional => &nothing,
                    None => return Err(PlainError::NoObject { kind, name: name_of(wanted).to_owned() }),
                };
                if wanted.items.is_empty() {
                    for (key, value) in values {
                        add(key, value.clone(), default_mode, None)?;
                    }
                }
                for item in &wanted.items {
                    let mode = item.mode.map_or(default_mode, bits);
                    match values.get(&item.key) {
                        Some(value) => add(&item.path, value.clone(), mode, None)?,
                        None if wanted.optional => {}
                        None => return Err(PlainError::NoKey { kind: short, key: item.key.clone() }),
                    }
                }
            }
            Source::Downward(wanted, allocatable) => {
                for item in &wanted.items {
                    let value = match (&item.field_ref, &item.resource_field_ref) {
                        (Some(field), _) => fields::field(pod, &field.field_path, "")?,
                        (None, Some(resource)) => fields::resource(pod, None, resource, allocatable)?,
                        (None, None) => continue,
                    };
                    add(&item.path, value.into_bytes(), item.mode.map_or(default_mode, bits), None)?;
                }
            }
            Source::Token(wanted, token) => {
                // Readable by its owner only; by the whole pod if the owner is not known.
                let uid = only_user(pod);
                let known = uid.is_some() || fs_group(pod).is_some();
                add(
                    &wanted.path,
                    token.clone().into_bytes(),
                    if known { PRIVATE } else { default_mode },
                    uid,
                )?;
            }
        }
    }
    Ok(files)
}

/// The object's name: a secret volume has its own field for it.
pub(super) fn name_of(wanted: &ObjectFilesSource) -> &str {
    if wanted.secret_name.is_empty() { &wanted.name } else { &wanted.secret_name }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let labels = json!({"app": "x"});
        serde_json::from_value(json!({"metadata": {"name": "p", "labels": labels}, "spec": spec})).unwrap()
    }

    fn secret(wanted: Value, values: Option<&[(&str, &str)]>) -> Source {
        let of = |values: &[(&str, &str)]| {
            values.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
        };
        Source::Secret(serde_json::from_value(wanted).unwrap(), values.map(of))
    }

    fn rendered(pod: &Pod, sources: &[Source]) -> Result<Vec<String>, String> {
        let files = payload(pod, sources, 0o644).map_err(|error| error.to_string())?;
        let render = |(path, file): (&String, &File)| {
            let uid = file.uid.map_or(String::new(), |uid| format!(" {uid}"));
            format!("{path} {:o}{uid} {}", file.mode, String::from_utf8_lossy(&file.bytes))
        };
        Ok(files.iter().map(render).collect())
    }

    /// Files from a Secret or ConfigMap, as in kubelet.
    #[test]
    fn keys_become_files() {
        let two = Some(&[("a", "1"), ("b", "2")][..]);
        for (wanted, values, expected) in [
            (json!({"secretName": "s"}), two, Ok(vec!["a 644 1", "b 644 2"])),
            (
                json!({"secretName": "s", "items": [{"key": "b", "path": "x/y", "mode": 0o400}]}),
                two,
                Ok(vec!["x/y 400 2"]),
            ),
            (json!({"secretName": "s"}), None, Err("secret \"s\" not found")),
            (json!({"name": "s"}), None, Err("secret \"s\" not found")),
            (json!({"secretName": "s", "optional": true}), None, Ok(vec![])),
            (
                json!({"secretName": "s", "items": [{"key": "c", "path": "c"}]}),
                two,
                Err("references non-existent secret key: c"),
            ),
            (
                json!({"secretName": "s", "optional": true, "items": [{"key": "c", "path": "c"}, {"key": "a", "path": "a"}]}),
                two,
                Ok(vec!["a 644 1"]),
            ),
        ] {
            let got = rendered(&pod(json!({})), &[secret(wanted.clone(), values)]);
            let expected: Result<Vec<String>, String> =
                expected.map(|files| files.into_iter().map(Into::into).collect()).map_err(Into::into);
            assert_eq!(got, expected, "{wanted}");
        }
        let config =
            Source::ConfigMap(ObjectFilesSource { name: "c".into(), ..ObjectFilesSource::default() }, None);
        assert_eq!(rendered(&pod(json!({})), &[config]).unwrap_err(), "configmap \"c\" not found");
        let outside = secret(json!({"items": [{"key": "a", "path": "../a"}]}), two);
        assert!(rendered(&pod(json!({})), &[outside]).unwrap_err().contains("not a valid file path"));
    }

    #[test]
    fn later_source_wins() {
        let fields = json!({"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]});
        let sources = [
            secret(json!({}), Some(&[("a", "1"), ("labels", "later wins")])),
            Source::Downward(serde_json::from_value(fields).unwrap(), BTreeMap::new()),
        ];
        assert_eq!(rendered(&pod(json!({})), &sources).unwrap(), ["a 644 1", "labels 644 app=\"x\""]);
    }

    /// A token belongs to the user shared by all containers, and is readable for the fsGroup.
    #[test]
    fn token_mode_depends_on_known_owner() {
        let user = |uid: i64| json!({"name": "c", "securityContext": {"runAsUser": uid}});
        let unset = json!({"name": "c"});
        for (spec, expected) in [
            (json!({"containers": [unset]}), "t 644 secret"),
            (json!({"containers": [user(7), user(7)]}), "t 600 7 secret"),
            (json!({"containers": [user(7), user(8)]}), "t 644 secret"),
            (json!({"containers": [user(7), unset]}), "t 644 secret"),
            (json!({"securityContext": {"runAsUser": 9}, "containers": [unset]}), "t 600 9 secret"),
            (json!({"securityContext": {"runAsUser": 9}, "containers": [user(7)]}), "t 600 7 secret"),
            (json!({"securityContext": {"fsGroup": 5}, "containers": [unset]}), "t 600 secret"),
        ] {
            let token = Source::Token(
                TokenProjection { path: "t".into(), ..TokenProjection::default() },
                "secret".into(),
            );
            assert_eq!(rendered(&pod(spec.clone()), &[token]).unwrap(), [expected], "{spec}");
        }
    }
}
