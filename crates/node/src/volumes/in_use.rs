//! `volumesInUse`: our word to the attach/detach controller that a volume must not be detached. Written as soon as it
//! changes.
//!
//! Promise: [`InUse::reported`] says yes only if the server has taken a list with the volume, and no list without it is
//! on its way. Until all pods of the node are known nothing is taken off the list that an earlier life has left; and while
//! something is mounted of which nobody can tell what it is, nothing that it may be.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use wharf_cluster::{Notice, Patch};
use wharf_model::whole::Node;
use wharf_model::{Key, Kind as _};

use super::manager::{Manager, Subject};

/// What was last said.
#[derive(Debug)]
pub(super) struct InUse {
    said: Mutex<Said>,
    /// The list may be another.
    changed: Notify,
    list: watch::Sender<Vec<String>>,
}

#[derive(Debug, Default)]
struct Said {
    list: Vec<String>,
    /// Whether the server has taken it.
    taken: bool,
}

impl InUse {
    pub(super) fn new() -> Self {
        Self { said: Mutex::default(), changed: Notify::new(), list: watch::Sender::new(Vec::new()) }
    }

    /// The list may be another now.
    pub(super) fn change(&self) {
        self.changed.notify_one();
    }

    /// The list, as it is to be.
    pub(super) fn watch(&self) -> watch::Receiver<Vec<String>> {
        self.list.subscribe()
    }

    /// Whether the server has our word for this volume; `node` is what it says itself.
    pub(super) fn reported(&self, node: &Node, volume: &str) -> bool {
        let said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let has = |list: &[String]| list.iter().any(|name| name == volume);
        said.taken && has(&said.list) && has(&node.status.volumes_in_use)
    }

    fn say(&self, list: &[String], taken: bool) {
        let mut said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *said = Said { list: list.to_vec(), taken };
    }

    fn stands(&self, list: &[String]) -> bool {
        let said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        said.taken && said.list == list
    }
}

/// The list that the Node is to have: what we use, before all pods are known also what it has, and then what of the list
/// that an earlier life has left may still be here.
fn wanted(ours: Vec<String>, has: &[String], settled: bool, left: Vec<String>) -> Vec<String> {
    let mut list: BTreeSet<String> = ours.into_iter().chain(left).collect();
    if !settled {
        list.extend(has.iter().cloned());
    }
    list.into_iter().collect()
}

impl Manager {
    /// Keeps the list right, for as long as it is polled.
    pub(super) async fn keep_in_use(&self) {
        let mut changes = self.node.changes();
        // After a write of which nobody knows what became, what the Node says may be about to change.
        let (mut failures, mut doubt, mut last) = (0, false, None::<Instant>);
        // As it was before we first wrote it.
        let mut before = None::<Vec<String>>;
        loop {
            let (ours, settled) = self.attachable();
            self.in_use.list.send_if_modified(|list| {
                let another = *list != ours;
                list.clone_from(&ours);
                another
            });
            if let Some(node) = self.node.get(&Key::cluster(&self.parts.node)) {
                let has = &node.status.volumes_in_use;
                let left = self.world().not_told(before.get_or_insert_with(|| has.clone()));
                let list = wanted(ours, has, settled, left);
                let right = sorted(has) == list && !doubt;
                if right && !self.in_use.stands(&list) {
                    // As an earlier life has left it: the server has it already.
                    self.in_use.say(&list, true);
                    self.wake_volumes(&list);
                } else if !right {
                    if let Some(last) = last {
                        sleep_until(last + self.settings.in_use_period).await;
                    }
                    last = Some(Instant::now());
                    doubt = !self.write_in_use(&list).await;
                    if !doubt {
                        failures = 0;
                        self.wake_volumes(&list);
                        continue;
                    }
                    sleep(self.backoff.after(failures)).await;
                    failures += 1;
                    continue;
                }
            }
            tokio::select! {
                biased;
                () = self.in_use.changed.notified() => {}
                notice = changes.next() => match notice {
                    Some(Notice::Change(_) | Notice::Resync) => {}
                    None => return,
                },
            }
        }
    }

    async fn write_in_use(&self, list: &[String]) -> bool {
        // From now on until the answer nobody may rely on what was said before.
        self.in_use.say(list, false);
        let patch = Patch::Strategic(json!({"status": {"volumesInUse": list}}));
        let key = Key::cluster(&self.parts.node);
        match self.parts.cluster.patch(&Node::API, &key, Some("status"), patch).await {
            Ok(_) => {
                self.in_use.say(list, true);
                true
            }
            Err(error) => {
                tracing::warn!(node = self.parts.node, %error, "volumesInUse is not written, trying again");
                false
            }
        }
    }

    fn wake_volumes(&self, list: &[String]) {
        for name in list {
            self.wake(Subject::Volume(name.clone()));
        }
    }
}

fn sorted(list: &[String]) -> Vec<String> {
    list.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// kubernetes.md 1.8 "volumesInUse", "Gate": sorted; nothing is taken off before.
    #[test]
    fn nothing_is_taken_off_before_all_pods_are_known() {
        let none = Vec::new;
        assert_eq!(wanted(list(&["b", "a"]), &list(&["c"]), false, none()), list(&["a", "b", "c"]));
        assert_eq!(wanted(list(&["b", "a"]), &list(&["c"]), true, none()), list(&["a", "b"]));
        assert_eq!(wanted(list(&["b", "a"]), &list(&["c"]), true, list(&["d"])), list(&["a", "b", "d"]));
        assert_eq!(wanted(list(&[]), &list(&["c"]), true, none()), list(&[]));
    }

    /// kubernetes.md 1.8 "Handshake": the server must have taken a list with the volume, and none without it may be
    /// on its way.
    #[test]
    fn only_what_was_taken_counts() {
        let in_use = InUse::new();
        let mut node = Node::default();
        node.status.volumes_in_use = list(&["a"]);
        assert!(!in_use.reported(&node, "a"), "an earlier life's word is not ours");
        in_use.say(&list(&["a"]), false);
        assert!(!in_use.reported(&node, "a"), "on its way");
        in_use.say(&list(&["a"]), true);
        assert!(in_use.reported(&node, "a") && !in_use.reported(&node, "b"));
        in_use.say(&list(&["b"]), false);
        assert!(!in_use.reported(&node, "a"), "a list without it is on its way");
        in_use.say(&list(&["a"]), true);
        assert!(!in_use.reported(&Node::default(), "a"), "the Node was made anew");
    }
}
