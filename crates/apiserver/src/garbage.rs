//! Garbage collection: an object whose owners are all gone goes too, and an owner waits for its dependents, or sets
//! them free, if that was asked for.
//!
//! An owner is gone only if its own place in the store is empty, or holds another object: never because it is of a
//! kind that is not served here. [`decide`] is the rule; [`graph`] says what to look at. Both are made anew from the
//! store at the start, so nothing is lost when the process dies.

mod decide;
mod graph;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::access::User;
use crate::rest::{Api, DeleteOptions, Verb, WriteOptions, target};
use crate::rounds::{Rounds, Turn};
use crate::status::Refusal;
use crate::store::{Key, WatchEnd};
use decide::{Dependent, Standing, Step, View, decide, owners};
use graph::Graph;

/// Collects until the store is closed.
pub(crate) async fn run(api: &Api) {
    while let Some(mut collector) = Collector::start(api) {
        match collector.run().await {
            // Slower than the log is long: read all again.
            WatchEnd::Compacted => {}
            WatchEnd::Closed => return,
        }
    }
}

struct Collector<'a> {
    api: &'a Api,
    graph: Graph,
    rounds: Rounds<Key>,
}

impl<'a> Collector<'a> {
    fn start(api: &'a Api) -> Option<Self> {
        loop {
            let page = api.store().list("", None, None, 0).ok()?;
            let Ok(watch) = api.store().watch("", page.revision) else { continue };
            let (mut graph, mut due) = (Graph::default(), BTreeSet::new());
            for entry in page.entries {
                due.extend(graph.written(&entry.key, &entry.value));
            }
            return Some(Self { api, graph, rounds: Rounds::new(watch, due) });
        }
    }

    async fn run(&mut self) -> WatchEnd {
        loop {
            match self.rounds.next().await {
                Ok(Turn::Event(event)) if event.deleted => {
                    self.rounds.add(self.graph.deleted(&event.key, &event.value));
                }
                Ok(Turn::Event(event)) => self.rounds.add(self.graph.written(&event.key, &event.value)),
                Ok(Turn::LookAt(key)) => {
                    if let Err(refusal) = self.look_at(&key).await {
                        tracing::debug!(key = &*key, %refusal, "left for later by the garbage collector");
                        self.rounds.rest(key);
                    }
                }
                Err(end) => return end,
            }
        }
    }

    async fn look_at(&mut self, key: &Key) -> Result<(), Refusal> {
        let Some(place) = graph::place(key) else { return Ok(()) };
        let Some(entry) = self.api.store().get(key) else { return Ok(()) };
        let object = crate::rest::decode(place.kind, &entry.value)?;
        let owners = owners(&object).into_iter().map(|owner| {
            let standing = self.standing(place.namespace, &owner);
            (owner, standing)
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
            Step::Nothing => Ok(()),
            Step::Delete(propagation) => {
                let options = DeleteOptions {
                    uid: Some(uid),
                    version: Some(entry.revision.to_string()),
                    propagation: Some(propagation),
                    ..DeleteOptions::default()
                };
                let one = target(Verb::Delete, place.kind, place.namespace, place.name);
                gone_is_fine(self.api.delete(&User::admin(), &one, &options).await.map(|_| ()))
            }
            Step::Disown(uids) => self.edit(&place, move |object| without_owners(object, &uids)).await,
            Step::Unblock => self.edit(&place, unblocked).await,
            Step::Release(finalizer) => {
                self.edit(&place, move |object| without_finalizer(object, finalizer)).await
            }
            Step::FreeDependents => {
                let keys: Vec<Key> = self.graph.dependents(&uid).map(|(key, _)| key.clone()).collect();
                for key in keys {
                    let Some(place) = graph::place(&key) else { continue };
                    let owner = vec![uid.clone()];
                    self.edit(&place, move |object| without_owners(object, &owner)).await?;
                }
                // When these writes are seen, the owner has no dependents and is let go.
                Ok(())
            }
        }
    }

    /// How an owner stands, by its own place in the store.
    fn standing(&self, namespace: &str, owner: &decide::Owner) -> Standing {
        let Some(kind) = owner.kind() else { return Standing::Unknown };
        if kind.namespaced && namespace.is_empty() {
            return Standing::Unknown;
        }
        let namespace = if kind.namespaced { namespace } else { "" };
        let there = self.api.store().get(&crate::rest::key(kind, namespace, &owner.name));
        let there = there.and_then(|entry| crate::rest::decode(kind, &entry.value).ok());
        decide::standing(owner, there.as_ref())
    }

    async fn edit(
        &self,
        place: &graph::Place<'_>,
        edit: impl Fn(&Value) -> Value + Send + Sync,
    ) -> Result<(), Refusal> {
        let one = target(Verb::Update, place.kind, place.namespace, place.name);
        let how = WriteOptions::INTERNAL;
        let changed =
            self.api.change(&User::admin(), &one, how, &mut Vec::new(), &mut |old, _| Ok(edit(old))).await;
        gone_is_fine(changed.map(|_| ()))
    }
}

/// Somebody was quicker, and the aim is reached.
fn gone_is_fine(done: Result<(), Refusal>) -> Result<(), Refusal> {
    match done {
        Err(refusal) if refusal.code == 404 => Ok(()),
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
        finalizers.retain(|of| of != finalizer);
        if finalizers.is_empty()
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            metadata.remove("finalizers");
        }
    }
    object
}
