//! Desired and existing CSIStorageCapacity objects, and which of them to reconcile after a change. Plain data and the
//! pure functions that derive it from the cluster's objects.

use std::collections::{BTreeMap, BTreeSet};

use wharf_model::selector::{NodeSelectorTerm, Operator, Requirement};
use wharf_model::topology::{Segments, is_accessible_from, segments_from_labels, topology_keys};
use wharf_model::volume::NodeAffinity;
use wharf_model::{CSINode, CSIStorageCapacity, Node, OwnerRef, StorageClass};

/// A desired object: the capacity for one class in one topology.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub(super) class: String,
    pub(super) topology: Segments,
}

/// The key of the work queue: one reconcile processes one subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// The capacity for a class in a topology.
    Item(Item),
    /// The name of an object that has the sidecar's labels but whose topology is not an exact set of labels.
    Unrecognized(String),
}

impl Subject {
    /// The subject of an object.
    pub(super) fn of(object: &CSIStorageCapacity) -> Self {
        match &object.node_topology {
            Some(selector) if selector.match_expressions.is_empty() => Self::Item(Item {
                class: object.storage_class_name.clone(),
                topology: selector.match_labels.clone(),
            }),
            _ => Self::Unrecognized(object.metadata.name.clone()),
        }
    }

    /// The key for indexes, attempts and logs.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Item(Item { class, topology }) => {
                let topology: Vec<_> = topology.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("{class}@{}", topology.join(","))
            }
            Self::Unrecognized(name) => format!("/{name}"),
        }
    }
}

/// The desired objects, each with the UID of its class.
pub(super) type Goal = BTreeMap<Item, String>;

/// All topologies of a driver: those of the nodes where it is registered, by its topology keys.
pub(super) fn topologies<'a>(
    driver: &str,
    nodes: impl IntoIterator<Item = (&'a CSINode, &'a Node)>,
) -> BTreeSet<Segments> {
    let topology = |(csi_node, node): (&CSINode, &Node)| match topology_keys(csi_node, driver) {
        [] => None,
        // A missing label will be added later; that change triggers another comparison.
        keys => segments_from_labels(&node.metadata.labels, keys),
    };
    nodes.into_iter().filter_map(topology).collect()
}

/// The desired objects: each topology with each class of the driver that the scheduler needs capacity for.
pub(super) fn goal<'a>(
    driver: &str,
    immediate: bool,
    topologies: &BTreeSet<Segments>,
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> Goal {
    let counts = |class: &&StorageClass| {
        class.provisioner == driver
            && !class.metadata.is_deleting()
            && (immediate || class.waits_for_first_consumer())
    };
    let mut goal = Goal::new();
    for class in classes.into_iter().filter(counts) {
        for topology in topologies {
            let item = Item { class: class.metadata.name.clone(), topology: topology.clone() };
            goal.insert(item, class.metadata.uid.clone());
        }
    }
    goal
}

/// The desired and the existing objects at one point in time.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) goal: Goal,
    /// The number of existing objects for each subject.
    pub(super) objects: BTreeMap<Subject, usize>,
}

/// The values of upstream's metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Desired objects.
    pub(super) goal: usize,
    /// Desired objects that exist.
    pub(super) current: usize,
    /// Objects that will be deleted.
    pub(super) obsolete: usize,
}

impl Inventory {
    /// Counts the existing objects that are not being deleted.
    pub(super) fn new<'a>(goal: Goal, objects: impl IntoIterator<Item = &'a CSIStorageCapacity>) -> Self {
        let mut inventory = Self { goal, objects: BTreeMap::new() };
        for object in objects.into_iter().filter(|object| !object.metadata.is_deleting()) {
            *inventory.objects.entry(Subject::of(object)).or_default() += 1;
        }
        inventory
    }

    /// The UID of the class, if the subject is desired.
    pub(super) fn wanted_class(&self, subject: &Subject) -> Option<&str> {
        match subject {
            Subject::Item(item) => self.goal.get(item).map(String::as_str),
            Subject::Unrecognized(_) => None,
        }
    }

    fn count(&self, subject: &Subject) -> usize {
        self.objects.get(subject).copied().unwrap_or_default()
    }

    /// The subjects to reconcile because of changes since an earlier inventory. A subject that already needed work then
    /// and has not changed is not returned again: it is in the queue, possibly in backoff.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<Subject> {
        let goals = self.goal.keys().chain(before.goal.keys()).cloned().map(Subject::Item);
        let subjects: BTreeSet<Subject> =
            goals.chain(self.objects.keys().cloned()).chain(before.objects.keys().cloned()).collect();
        let needs_work = |subject: &Subject| {
            let (then, now) = (before.wanted_class(subject), self.wanted_class(subject));
            let correct = self.count(subject) == usize::from(now.is_some());
            let same = then == now && before.count(subject) == self.count(subject);
            // A class that was deleted and recreated may have other parameters.
            (!correct && !same) || (now.is_some() && then != now)
        };
        subjects.into_iter().filter(needs_work).collect()
    }

    /// The values of upstream's metrics.
    pub(super) fn counts(&self) -> Counts {
        let wanted = |subject: &Subject| self.wanted_class(subject).is_some();
        let (current, obsolete): (Vec<_>, Vec<_>) =
            self.objects.iter().partition(|(subject, _)| wanted(subject));
        Counts {
            goal: self.goal.len(),
            current: current.len(),
            obsolete: obsolete.into_iter().map(|(_, count)| count).sum(),
        }
    }

    /// All subjects of a class.
    pub(super) fn of_class(&self, class: &str) -> Vec<Subject> {
        let first = Item { class: class.to_owned(), topology: Segments::new() };
        let items = self.goal.range(first..).take_while(|(item, _)| item.class == class);
        items.map(|(item, _)| Subject::Item(item.clone())).collect()
    }

    /// All subjects whose capacity a volume with this affinity uses.
    pub(super) fn of_affinity(&self, affinity: &NodeAffinity) -> Vec<Subject> {
        let terms = affinity.required.iter().flat_map(|required| &required.node_selector_terms);
        let exact: Option<Vec<Segments>> = terms.map(exact_topology).collect();
        let classes: BTreeSet<&String> = self.goal.keys().map(|item| &item.class).collect();
        let named: Vec<_> = exact
            .into_iter()
            .flatten()
            .flat_map(|topology| {
                classes.iter().map(move |&class| Item { class: class.clone(), topology: topology.clone() })
            })
            .filter(|item| self.goal.contains_key(item))
            .collect();
        let items: Vec<Item> = match named.is_empty() {
            false => named,
            true => self
                .goal
                .keys()
                .filter(|item| is_accessible_from(Some(affinity), "", &item.topology))
                .cloned()
                .collect(),
        };
        items.into_iter().map(Subject::Item).collect()
    }
}

/// The topology that a term matches exactly, or `None` if the term is more complex.
fn exact_topology(term: &NodeSelectorTerm) -> Option<Segments> {
    let one = |requirement: &Requirement| match (requirement.operator, &requirement.values[..]) {
        (Operator::In, [value]) => Some((requirement.key.clone(), value.clone())),
        _ => None,
    };
    match term.match_fields.is_empty() {
        true => term.match_expressions.iter().map(one).collect(),
        false => None,
    }
}

/// The driver's GetCapacity response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Available capacity, in bytes.
    pub(super) available: i64,
    /// Maximum volume size, if the driver reports it.
    pub(super) maximum: Option<i64>,
}

/// One subject, as the input of [`decide`](super::decide::decide).
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// Whether the object is desired.
    pub(super) wanted: bool,
    /// The existing objects that are not being deleted.
    pub(super) objects: Vec<&'a CSIStorageCapacity>,
    /// The driver's response, if it was just called.
    pub(super) capacity: Option<Capacity>,
    /// The desired owner.
    pub(super) owner: Option<&'a OwnerRef>,
}

#[cfg(test)]
mod tests;
