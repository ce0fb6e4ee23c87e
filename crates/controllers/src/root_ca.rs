//! Puts the authority of the API server into each namespace, where pods look for it; the contract is that of
//! kube-controller-manager's root-ca-cert-publisher-controller.
//!
//! - A namespace that does not end has a config map `kube-root-ca.crt` with the certificate in it.
//! - One that somebody changed or deleted is put right.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_cluster::work::{Outcome, Wish, feed, work};
use wharf_cluster::{ApiError, Backoff, Change, Patch, Priority, Queue, Store, WatchOptions};
use wharf_model::namespace::Namespace;
use wharf_model::{ConfigMap, Key, Kind};

use crate::Context;

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
/// Namespaces seen to at once.
const WORKERS: usize = 10;

/// What is to be done for a namespace.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Rest,
    Make,
    Mend,
}

fn decide(namespace: Option<&Namespace>, there: Option<&ConfigMap>, certificate: &str) -> Step {
    match (namespace, there) {
        (None, _) => Step::Rest,
        (Some(namespace), _) if namespace.metadata.is_deleting() => Step::Rest,
        (Some(_), None) => Step::Make,
        (Some(_), Some(there)) => {
            let right =
                there.data.len() == 1 && there.data.get(KEY).is_some_and(|value| value == certificate);
            if right { Step::Rest } else { Step::Mend }
        }
    }
}

/// Runs until the stop. `certificate` is the authority's, in PEM.
pub async fn run(context: Context, certificate: String) {
    let cluster = &context.cluster;
    let namespaces = cluster.store::<Namespace>(WatchOptions::default());
    let field_selector = Some(format!("metadata.name={NAME}"));
    let maps = cluster.store::<ConfigMap>(WatchOptions { field_selector, ..WatchOptions::default() });
    let backoff =
        Backoff { start: Duration::from_millis(200), max: Duration::from_secs(60), ..Backoff::default() };
    let queue: Queue<Key> = Queue::new("root-ca", backoff, cluster.metrics());
    let gate = context.gate.clone();
    tokio::select! {
        () = async { namespaces.synced().await; maps.synced().await } => {}
        () = gate.stopped() => return,
    }
    // These end with this function.
    let mut besides = JoinSet::new();
    let wish = |name: &str| Wish { key: Key::cluster(name), priority: Priority::Normal };
    besides.spawn(feed(namespaces.clone(), queue.clone(), move |change: &Change<Namespace>| {
        vec![wish(&change.key.name)]
    }));
    besides.spawn(feed(maps.clone(), queue.clone(), move |change: &Change<ConfigMap>| {
        change.key.namespace.as_deref().map(wish).into_iter().collect()
    }));
    let publisher = Arc::new(Publisher { context, namespaces, maps, certificate });
    let one = |namespace: Key| {
        let publisher = Arc::clone(&publisher);
        async move { publisher.see_to(&namespace).await }
    };
    work(&queue, &gate, WORKERS, one).await;
}

struct Publisher {
    context: Context,
    namespaces: Store<Namespace>,
    maps: Store<ConfigMap>,
    certificate: String,
}

impl Publisher {
    async fn see_to(&self, namespace: &Key) -> Outcome {
        let key = Key::namespaced(&namespace.name, NAME);
        let there = self.maps.get(&key);
        let cluster = &self.context.cluster;
        let data = json!({KEY: self.certificate});
        let done = match decide(
            self.namespaces.get(namespace).as_deref(),
            there.as_deref(),
            &self.certificate,
        ) {
            Step::Rest => return Outcome::Done,
            Step::Make => {
                let body = json!({"metadata": {"name": NAME, "annotations": {"kubernetes.io/description": DESCRIPTION}},
                    "data": data});
                cluster.create(&ConfigMap::API, Some(&namespace.name), &body).await
            }
            Step::Mend => {
                let path = [("add", "/data", data), ("test", "/metadata/name", Value::from(NAME))];
                let operations: Value = path
                    .into_iter()
                    .map(|(op, path, value)| json!({"op": op, "path": path, "value": value}))
                    .collect();
                cluster.patch(&ConfigMap::API, &key, None, Patch::Json(operations)).await
            }
        };
        match done {
            // Its end, or somebody else's version, calls for another look.
            Ok(_) | Err(ApiError::AlreadyExists(_) | ApiError::NotFound(_)) => Outcome::Done,
            Err(error) => {
                tracing::warn!(namespace = namespace.name, %error, "the authority is not published");
                Outcome::Retry
            }
        }
    }
}

const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_that_stays_has_it() {
        let namespace = |deleting: bool| -> Namespace {
            let time = deleting.then_some("2026-11-16T10:00:00Z");
            serde_json::from_value(json!({"metadata": {"name": "n", "deletionTimestamp": time}})).unwrap()
        };
        let map = |data: Value| -> ConfigMap { serde_json::from_value(json!({"data": data})).unwrap() };
        for (namespace, there, expected) in [
            (None, None, Step::Rest),
            (Some(namespace(false)), None, Step::Make),
            (Some(namespace(true)), None, Step::Rest),
            (Some(namespace(false)), Some(map(json!({KEY: "pem"}))), Step::Rest),
            (Some(namespace(false)), Some(map(json!({KEY: "other"}))), Step::Mend),
            (Some(namespace(false)), Some(map(json!({KEY: "pem", "more": "x"}))), Step::Mend),
            (Some(namespace(true)), Some(map(json!({}))), Step::Rest),
        ] {
            assert_eq!(decide(namespace.as_ref(), there.as_ref(), "pem"), expected, "{there:?}");
        }
    }
}
