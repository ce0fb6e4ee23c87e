//! The workload for all sides, timed by a client's watches.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use wharf_cluster::{Cluster, ConnectOptions, Preconditions, Store, WatchOptions};
use wharf_model::Pod;
use wharf_model::{ApiResource, Key, Kind as _, PersistentVolume, PersistentVolumeClaim, StorageClass};

use crate::objects::{self, NAMESPACE, NOW, WAITS};
use crate::sides::Side;

/// Timeout of any step.
const LIMIT: Duration = Duration::from_secs(1800);
const TICK: Duration = Duration::from_millis(1);

/// A client with watches on the objects.
pub(crate) struct Work {
    api: Cluster,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
}

impl Work {
    /// Connects and creates the StorageClasses.
    pub(crate) async fn new(side: &Side) -> Self {
        let options =
            ConnectOptions { kubeconfig: Some(side.kubeconfig.clone()), ..ConnectOptions::default() };
        let api = Cluster::connect(&options).await.expect("the side's credentials");
        let (pods, claims) = (api.store(WatchOptions::default()), api.store(WatchOptions::default()));
        let volumes = api.store(WatchOptions::default());
        pods.add_index("ready", |pod: &Pod| {
            let ready = |it: &&_| is_ready(it);
            pod.status.conditions.iter().find(ready).map(|_| "yes".to_owned()).into_iter().collect()
        });
        claims.add_index("phase", |claim: &PersistentVolumeClaim| vec![claim.status.phase.to_string()]);
        pods.wait_synced().await;
        claims.wait_synced().await;
        volumes.wait_synced().await;
        let work = Self { api, pods, claims, volumes };
        for (name, mode) in [(WAITS, "WaitForFirstConsumer"), (NOW, "Immediate")] {
            work.create(&StorageClass::API, None, vec![objects::class(name, side.driver, mode)]).await;
        }
        work
    }

    /// Creates claims with a pod each; returns the seconds until all pods are ready.
    pub(crate) async fn start(&self, names: &[String]) -> f64 {
        let started = Instant::now();
        let claims = names.iter().map(|name| objects::claim(name, WAITS)).collect();
        let pods = names.iter().map(|name| objects::pod(name)).collect();
        self.create(&PersistentVolumeClaim::API, Some(NAMESPACE), claims).await;
        self.create(&Pod::API, Some(NAMESPACE), pods).await;
        self.wait_until("all pods are ready", || self.pods.by_index("ready", "yes").len() == names.len())
            .await;
        started.elapsed().as_secs_f64()
    }

    /// Deletes claims and pods; returns the seconds until they and their volumes are gone.
    pub(crate) async fn end(&self, names: &[String]) -> f64 {
        let started = Instant::now();
        self.delete(&Pod::API, names).await;
        self.delete(&PersistentVolumeClaim::API, names).await;
        self.wait_until("everything is gone", || self.pods.is_empty() && self.volumes.is_empty()).await;
        started.elapsed().as_secs_f64()
    }

    /// Creates claims without pods; returns the seconds until all are bound.
    pub(crate) async fn volumes(&self, names: &[String]) -> f64 {
        let started = Instant::now();
        let claims = names.iter().map(|name| objects::claim(name, NOW)).collect();
        self.create(&PersistentVolumeClaim::API, Some(NAMESPACE), claims).await;
        self.wait_until("all claims are bound", || {
            self.claims.by_index("phase", "Bound").len() == names.len()
        })
        .await;
        started.elapsed().as_secs_f64()
    }

    async fn create(&self, kind: &'static ApiResource, namespace: Option<&'static str>, objects: Vec<Value>) {
        let mut running = JoinSet::new();
        for mut object in objects {
            let api = self.api.clone();
            object["apiVersion"] = match kind.group {
                "" => kind.version.into(),
                group => format!("{group}/{}", kind.version).into(),
            };
            object["kind"] = kind.kind.into();
            running.spawn(async move { api.create(kind, namespace, &object).await.map(drop) });
        }
        running.join_all().await.into_iter().for_each(|made| made.expect("the API server takes it"));
    }

    async fn delete(&self, kind: &'static ApiResource, names: &[String]) {
        let mut running = JoinSet::new();
        for name in names {
            let (api, key) = (self.api.clone(), Key::namespaced(NAMESPACE, name));
            running.spawn(async move { api.delete(kind, &key, Preconditions::default()).await });
        }
        running.join_all().await.into_iter().for_each(|gone| gone.expect("the API server takes it"));
    }

    async fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < LIMIT, "timeout after {LIMIT:?}: {what}");
            tokio::time::sleep(TICK).await;
        }
    }
}

fn is_ready(condition: &wharf_model::claim::Condition) -> bool {
    condition.kind == "Ready" && condition.status == "True"
}
