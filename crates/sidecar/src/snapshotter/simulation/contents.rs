//! The contents in the API server, and what users and the snapshot controller do with them.

use serde_json::{Value, json};
use wharf_model::snapshot::names;
use wharf_model::testing::is_deleting;

use super::{CONTENTS, Kind, Simulation};

impl Simulation {
    /// The snapshot controller creates a content, sometimes with the finalizer.
    pub(super) fn create(&mut self) {
        let name = format!("c{}", self.chance.below(CONTENTS));
        if !self.known.insert(name.clone()) {
            return;
        }
        let finalizers = if self.chance.one_in(2) { json!([names::CONTENT_PROTECTION]) } else { json!([]) };
        let others = self.chance.one_in(8);
        let policy = if self.chance.one_in(5) { "Retain" } else { "Delete" };
        let mut content = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "finalizers": finalizers},
            "spec": {
                "driver": "d.test", "deletionPolicy": policy, "volumeSnapshotClassName": "class",
                "volumeSnapshotRef": {"name": "s", "namespace": "ns", "uid": format!("vs-{name}")},
                "source": {"volumeHandle": format!("v-{name}")},
            },
        });
        if others {
            content["metadata"]["finalizers"] = json!([names::CONTENT_PROTECTION, "others/own"]);
        }
        if policy == "Retain" {
            self.retained.insert(name);
        }
        self.world.put(Kind::Content, content);
    }

    /// A user deletes the VolumeSnapshot of a content, or the content itself.
    pub(super) fn user_deletes(&mut self) {
        let names = self.names();
        if names.is_empty() {
            return;
        }
        let name = &names[self.chance.below(names.len() as u64) as usize];
        if self.chance.one_in(2) {
            self.mark_being_deleted(name);
        }
        if self.chance.one_in(2) {
            self.world.delete(None, Kind::Content, name);
        }
        if self.chance.one_in(4) {
            self.remove_other_finalizer(name);
        }
    }

    /// The names of the server's contents.
    pub(super) fn names(&self) -> Vec<String> {
        self.world.objects.keys().map(|key| key.1.clone()).collect()
    }

    pub(super) fn is_deleting(&self, name: &str) -> bool {
        self.world.get(Kind::Content, name).is_some_and(is_deleting)
    }

    pub(super) fn has_annotation(&self, name: &str, annotation: &str) -> bool {
        let content = self.world.get(Kind::Content, name);
        content.is_some_and(|content| content["metadata"]["annotations"].get(annotation).is_some())
    }

    /// The snapshot controller marks a content whose snapshot is deleted.
    pub(super) fn mark_being_deleted(&mut self, name: &str) {
        self.world.edit(None, Kind::Content, name, |content| {
            content["metadata"]["annotations"][names::BEING_DELETED] = json!("yes");
        });
    }

    /// Another component removes its finalizer.
    pub(super) fn remove_other_finalizer(&mut self, name: &str) {
        self.world.edit(None, Kind::Content, name, |content| {
            let finalizers = content.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
            if let Some(list) = finalizers {
                list.retain(|finalizer| finalizer != "others/own");
            }
        });
    }
}
