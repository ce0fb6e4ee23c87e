//! Fetches the sources of a volume's files from the API server.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use wharf_cluster::{Cluster, now};
use wharf_model::pod::{DownwardApi, ObjectFilesSource, PodVolume, TokenProjection};
use wharf_model::{ApiResource, ConfigMap, Key, Node, Pod, Quantity, Scope, Secret};

use super::atomic::is_inside;
use super::payload::{Source, name_of};
use super::{PlainError, token};

const ACCOUNTS: ApiResource = ApiResource {
    group: "",
    version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    scope: Scope::Namespaced,
};

/// Fetches all sources of a volume, in order. `path` is the volume's directory: a fresh token in it is reused.
pub(super) async fn gather(
    cluster: &Cluster,
    pod: &Pod,
    volume: &PodVolume,
    path: &Path,
) -> Result<Vec<Source>, PlainError> {
    let PodVolume { secret: own_secret, config_map: own_map, projected, downward_api, .. } = volume;
    let mut sources = Vec::new();
    if let Some(wanted) = own_secret {
        sources.push(secret(cluster, pod, wanted).await?);
    }
    if let Some(wanted) = own_map {
        sources.push(config_map(cluster, pod, wanted).await?);
    }
    if let Some(wanted) = downward_api {
        sources.push(downward(cluster, pod, wanted).await?);
    }
    for source in projected.iter().flat_map(|projected| &projected.sources) {
        if let Some(wanted) = &source.secret {
            sources.push(secret(cluster, pod, wanted).await?);
        }
        if let Some(wanted) = &source.config_map {
            sources.push(config_map(cluster, pod, wanted).await?);
        }
        if let Some(wanted) = &source.downward_api {
            sources.push(downward(cluster, pod, wanted).await?);
        }
        if let Some(wanted) = &source.service_account_token {
            sources.push(token(cluster, pod, wanted, path).await?);
        }
    }
    Ok(sources)
}

fn key(pod: &Pod, name: &str) -> Key {
    Key { namespace: pod.metadata.namespace.clone(), name: name.to_owned() }
}

fn owned<'a>(values: impl Iterator<Item = (&'a str, &'a [u8])>) -> BTreeMap<String, Vec<u8>> {
    values.map(|(key, value)| (key.to_owned(), value.to_vec())).collect()
}

async fn secret(cluster: &Cluster, pod: &Pod, wanted: &ObjectFilesSource) -> Result<Source, PlainError> {
    let found = cluster.get::<Secret>(&key(pod, name_of(wanted))).await?;
    Ok(Source::Secret(wanted.clone(), found.map(|secret| owned(secret.data.iter()))))
}

async fn config_map(cluster: &Cluster, pod: &Pod, wanted: &ObjectFilesSource) -> Result<Source, PlainError> {
    let found = cluster.get::<ConfigMap>(&key(pod, name_of(wanted))).await?;
    Ok(Source::ConfigMap(wanted.clone(), found.map(|map| owned(map.iter()))))
}

async fn downward(cluster: &Cluster, pod: &Pod, wanted: &DownwardApi) -> Result<Source, PlainError> {
    let needs_node = wanted.items.iter().any(|item| item.resource_field_ref.is_some());
    let allocatable: BTreeMap<String, Quantity> = match needs_node {
        true => {
            let node = cluster.get::<Node>(&Key::cluster(pod.node_name.as_str())).await?;
            node.map(|node| node.status.allocatable.clone()).unwrap_or_default()
        }
        false => BTreeMap::new(),
    };
    Ok(Source::Downward(wanted.clone(), allocatable))
}

async fn token(
    cluster: &Cluster,
    pod: &Pod,
    wanted: &TokenProjection,
    path: &Path,
) -> Result<Source, PlainError> {
    let file = Some(&wanted.path).filter(|file| is_inside(file));
    let present = file.and_then(|file| std::fs::read_to_string(path.join(file)).ok());
    if let Some(present) = present.filter(|present| token::is_fresh(present, now())) {
        return Ok(Source::Token(wanted.clone(), present));
    }
    let account = token::account(pod);
    let response = cluster
        .create_subresource(&ACCOUNTS, &key(pod, account), "token", &token::request(pod, wanted))
        .await?;
    match response.pointer("/status/token").and_then(Value::as_str) {
        Some(token) => Ok(Source::Token(wanted.clone(), token.to_owned())),
        None => Err(PlainError::NoToken { account: account.to_owned() }),
    }
}
