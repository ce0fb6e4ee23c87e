//! The garbage collector: deletes objects whose owners no longer exist, and implements foreground and orphan deletion
//! of owners.
//!
//! An owner is absent only if its key in the store is empty or holds another object, never because its kind is not
//! served here. [`decide`] is the rule; [`graph`] finds the objects to reconcile after a write. Both are rebuilt from
//! the store at startup, so a crash loses nothing.

mod decide;
mod graph;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::time::sleep;
use wharf_model::panics::catch;

use crate::access::User;
use crate::rest::{Api, DeleteOptions, Verb, WriteOptions, target};
use crate::retry_loop::{RETRY_DELAY, RetryLoop, Work};
use crate::status::StatusError;
use crate::store::{Key, WatchEnd};
use decide::{Dependent, OwnerState, Step, View, decide, owners};
use graph::Graph;

/// The component in the log and in the metric of panics.
const PANIC_COMPONENT: &str = "garbage-collector";

/// Runs the garbage collector until the store is closed. After a panic it starts from a new list.
pub(crate) async fn run(api: &Api) {
    while let Some(mut collector) = Collector::start(api) {
        match catch(PANIC_COMPONENT, "events", collector.run()).await {
            // The watch fell behind the log: start from a new list.
            Ok(WatchEnd::Compacted) => {}
            Ok(WatchEnd::Closed) => return,
            Err(_) => sleep(RETRY_DELAY).await,
        }
    }
}

struct Collector<'a> {
    api: &'a Api,
    graph: Graph,
    retry_loop: RetryLoop<Key>,
}

impl<'a> Collector<'a> {
    fn start(api: &'a Api) -> Option<Self> {
        loop {
            let page = api.store().list("", None, None, 0).ok()?;
            let Ok(watch) = api.store().watch("", page.revision) else { continue };
            let (mut graph, mut due) = (Graph::default(), BTreeSet::new());
            for entry in page.entries {
                due.extend(graph.upsert(&entry.key, &entry.value));
            }
            return Some(Self { api, graph, retry_loop: RetryLoop::new(watch, due) });
        }
    }

    async fn run(&mut self) -> WatchEnd {
        loop {
            match self.retry_loop.next().await {
                Ok(Work::Event(event)) if event.deleted => {
                    self.retry_loop.enqueue(self.graph.remove(&event.key, &event.value));
                }
                Ok(Work::Event(event)) => {
                    self.retry_loop.enqueue(self.graph.upsert(&event.key, &event.value))
                }
                Ok(Work::Reconcile(key)) => {
                    let done = catch(PANIC_COMPONENT, &key, self.reconcile(&key)).await;
                    if let Err(status_error) = done.unwrap_or_else(|_| Err(StatusError::panicked())) {
                        tracing::debug!(key = &*key, error = %status_error, "failed to garbage-collect object; retrying");
                        self.retry_loop.retry_later(key);
                    }
                }
                Err(end) => return end,
            }
        }
    }

    async fn reconcile(&mut self, key: &Key) -> Result<(), StatusError> {
        let Some(path) = graph::parse_key(key) else { return Ok(()) };
        let Some(entry) = self.api.store().get(key) else { return Ok(()) };
        let object = crate::rest::decode(path.kind, &entry.value)?;
        let owners = owners(&object).into_iter().map(|owner| {
            let owner_state = self.owner_state(path.namespace, &owner);
            (owner, owner_state)
        });
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or("");
        let dependents = self
            .graph
            .dependents(uid)
            .map(|(key, blocks)| Dependent { blocks, waits: self.graph.waits(key) });
        let view = View { object: &object, owners: owners.collect(), dependents: dependents.collect() };
        let uid = uid.to_owned();
        let step = decide(&view);
        match step {
            Step::Idle => Ok(()),
            Step::Delete(propagation) => {
                let options = DeleteOptions {
                    uid: Some(uid),
                    resource_version: Some(entry.revision.to_string()),
                    propagation: Some(propagation),
                    ..DeleteOptions::default()
                };
                let target_object = target(Verb::Delete, path.kind, path.namespace, path.name);
                ignore_not_found(self.api.delete(&User::admin(), &target_object, &options).await.map(|_| ()))
            }
            Step::RemoveOwners(uids) => self.edit(&path, move |object| without_owners(object, &uids)).await,
            Step::Unblock => self.edit(&path, unblocked).await,
            Step::RemoveFinalizer(finalizer) => {
                self.edit(&path, move |object| without_finalizer(object, finalizer)).await
            }
            Step::OrphanDependents => {
                let keys: Vec<Key> = self.graph.dependents(&uid).map(|(key, _)| key.clone()).collect();
                for key in keys {
                    let Some(path) = graph::parse_key(&key) else { continue };
                    let owner = vec![uid.clone()];
                    self.edit(&path, move |object| without_owners(object, &owner)).await?;
                }
                // When the graph has processed these writes, the owner has no dependents left and loses its finalizer.
                Ok(())
            }
        }
    }

    /// The state of an owner, read from its key in the store.
    fn owner_state(&self, namespace: &str, owner: &decide::Owner) -> OwnerState {
        let Some(kind) = owner.kind() else { return OwnerState::Unknown };
        if kind.namespaced && namespace.is_empty() {
            return OwnerState::Unknown;
        }
        let namespace = if kind.namespaced { namespace } else { "" };
        let existing = self.api.store().get(&crate::rest::key(kind, namespace, &owner.name));
        let existing = existing.and_then(|entry| crate::rest::decode(kind, &entry.value).ok());
        decide::owner_state(owner, existing.as_ref())
    }

    async fn edit(
        &self,
        path: &graph::ObjectPath<'_>,
        edit: impl Fn(&Value) -> Value + Send + Sync,
    ) -> Result<(), StatusError> {
        let target_object = target(Verb::Update, path.kind, path.namespace, path.name);
        let options = WriteOptions::INTERNAL;
        let changed = self
            .api
            .change(&User::admin(), &target_object, options, &mut Vec::new(), &mut |old, _| Ok(edit(old)))
            .await;
        ignore_not_found(changed.map(|_| ()))
    }
}

/// The object is deleted already, so the goal is reached.
fn ignore_not_found(done: Result<(), StatusError>) -> Result<(), StatusError> {
    match done {
        Err(status_error) if status_error.code == 404 => Ok(()),
        done => done,
    }
}

fn without_owners(object: &Value, uids: &[String]) -> Value {
    let mut object = object.clone();
    if let Some(Value::Array(owners)) = object.pointer_mut("/metadata/ownerReferences") {
        owners.retain(|owner| !uids.iter().any(|uid| owner["uid"] == **uid));
        if owners.is_empty()
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            metadata.remove("ownerReferences");
        }
    }
    object
}

fn unblocked(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(Value::Array(owners)) = object.pointer_mut("/metadata/ownerReferences") {
        for owner in owners {
            owner["blockOwnerDeletion"] = json!(false);
        }
    }
    object
}

fn without_finalizer(object: &Value, finalizer: &str) -> Value {
    let mut object = object.clone();
    if let Some(Value::Array(finalizers)) = object.pointer_mut("/metadata/finalizers") {
        finalizers.retain(|existing| existing != finalizer);
        if finalizers.is_empty()
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            metadata.remove("finalizers");
        }
    }
    object
}
