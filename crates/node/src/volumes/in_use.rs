//! `volumesInUse`: the attach/detach controller does not detach the volumes in this list. Updated as soon as it
//! changes.
//!
//! Guarantees: [`InUse::reported`] is true only if the API server has accepted a list with the volume, and no list
//! without it is in flight. Entries from an earlier run are kept until all pods of the node are known; while an
//! unidentified mount exists, entries that it may belong to are kept too.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use wharf_cluster::{Patch, StoreEvent};
use wharf_model::Node;
use wharf_model::{Key, Kind as _};

use super::manager::{Manager, Subject};

/// The last reported list.
#[derive(Debug)]
pub(super) struct InUse {
    last: Mutex<Report>,
    /// Notified when the list may have changed.
    changed: Notify,
    list: watch::Sender<Vec<String>>,
}

#[derive(Debug, Default)]
struct Report {
    list: Vec<String>,
    /// Whether the API server has accepted it.
    accepted: bool,
}

impl InUse {
    pub(super) fn new() -> Self {
        Self { last: Mutex::default(), changed: Notify::new(), list: watch::Sender::new(Vec::new()) }
    }

    /// Signals that the list may have changed.
    pub(super) fn notify_changed(&self) {
        self.changed.notify_one();
    }

    /// The desired list.
    pub(super) fn watch(&self) -> watch::Receiver<Vec<String>> {
        self.list.subscribe()
    }

    /// Whether the API server has accepted a list with this volume; `node` is the Node as last seen.
    pub(super) fn reported(&self, node: &Node, volume: &str) -> bool {
        let last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let has = |list: &[String]| list.iter().any(|name| name == volume);
        last.accepted && has(&last.list) && has(&node.status.volumes_in_use)
    }

    fn record(&self, list: &[String], accepted: bool) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *last = Report { list: list.to_vec(), accepted };
    }

    fn is_current(&self, list: &[String]) -> bool {
        let last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        last.accepted && last.list == list
    }
}

/// The list to report: volumes in use; the Node's current list until all pods are known; and entries of an earlier
/// run that may still be mounted.
fn list_to_report(
    ours: Vec<String>,
    reported: &[String],
    pods_known: bool,
    leftovers: Vec<String>,
) -> Vec<String> {
    let mut list: BTreeSet<String> = ours.into_iter().chain(leftovers).collect();
    if !pods_known {
        list.extend(reported.iter().cloned());
    }
    list.into_iter().collect()
}

impl Manager {
    /// Keeps the list up to date, for as long as it is polled.
    pub(super) async fn maintain_in_use(&self) {
        let mut changes = self.node.subscribe();
        // After a write with an unknown result, the Node as last seen may be about to change.
        let (mut failures, mut uncertain, mut last) = (0, false, None::<Instant>);
        // The list before the first write.
        let mut before = None::<Vec<String>>;
        loop {
            let (ours, pods_known) = self.attachable();
            self.in_use.list.send_if_modified(|list| {
                let changed = *list != ours;
                list.clone_from(&ours);
                changed
            });
            if let Some(node) = self.node.get(&Key::cluster(&self.parts.node)) {
                let reported = &node.status.volumes_in_use;
                let leftovers = self.world().may_be_in_use(before.get_or_insert_with(|| reported.clone()));
                let list = list_to_report(ours, reported, pods_known, leftovers);
                let up_to_date = sorted(reported) == list && !uncertain;
                if up_to_date && !self.in_use.is_current(&list) {
                    // Left by an earlier run: the API server has it already.
                    self.in_use.record(&list, true);
                    self.wake_volumes(&list);
                } else if !up_to_date {
                    if let Some(last) = last {
                        sleep_until(last + self.settings.in_use_period).await;
                    }
                    last = Some(Instant::now());
                    uncertain = !self.write_in_use(&list).await;
                    if !uncertain {
                        failures = 0;
                        self.wake_volumes(&list);
                        continue;
                    }
                    sleep(self.backoff.delay(failures)).await;
                    failures += 1;
                    continue;
                }
            }
            tokio::select! {
                biased;
                () = self.in_use.changed.notified() => {}
                notice = changes.next() => match notice {
                    Some(StoreEvent::Change(_) | StoreEvent::Resync) => {}
                    None => return,
                },
            }
        }
    }

    async fn write_in_use(&self, list: &[String]) -> bool {
        // Until the response arrives, earlier reports do not count.
        self.in_use.record(list, false);
        let patch = Patch::Strategic(json!({"status": {"volumesInUse": list}}));
        let key = Key::cluster(&self.parts.node);
        match self.parts.cluster.patch(&Node::API, &key, Some("status"), patch).await {
            Ok(_) => {
                self.in_use.record(list, true);
                true
            }
            Err(error) => {
                tracing::warn!(node = self.parts.node, %error, "failed to update volumesInUse; retrying");
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

    /// kubernetes.md 1.8 "volumesInUse", "Wait for all pods": sorted; nothing is removed before.
    #[test]
    fn entries_are_kept_until_all_pods_are_known() {
        let none = Vec::new;
        assert_eq!(list_to_report(list(&["b", "a"]), &list(&["c"]), false, none()), list(&["a", "b", "c"]));
        assert_eq!(list_to_report(list(&["b", "a"]), &list(&["c"]), true, none()), list(&["a", "b"]));
        assert_eq!(
            list_to_report(list(&["b", "a"]), &list(&["c"]), true, list(&["d"])),
            list(&["a", "b", "d"])
        );
        assert_eq!(list_to_report(list(&[]), &list(&["c"]), true, none()), list(&[]));
    }

    /// kubernetes.md 1.8 "Attach handshake": the API server must have accepted a list with the volume, and none without
    /// it may be in flight.
    #[test]
    fn only_an_accepted_list_counts_as_reported() {
        let in_use = InUse::new();
        let mut node = Node::default();
        node.status.volumes_in_use = list(&["a"]);
        assert!(!in_use.reported(&node, "a"), "reported by an earlier run");
        in_use.record(&list(&["a"]), false);
        assert!(!in_use.reported(&node, "a"), "in flight");
        in_use.record(&list(&["a"]), true);
        assert!(in_use.reported(&node, "a") && !in_use.reported(&node, "b"));
        in_use.record(&list(&["b"]), false);
        assert!(!in_use.reported(&node, "a"), "a list without it is in flight");
        in_use.record(&list(&["a"]), true);
        assert!(!in_use.reported(&Node::default(), "a"), "the Node was re-created");
    }
}
