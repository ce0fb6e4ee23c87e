//! What there is to be, what there is, and what changed between two looks: plain data and the rules that reduce the
//! cluster's objects to it.

use std::collections::{BTreeMap, BTreeSet};

use wharf_model::selector::{NodeSelectorTerm, Operator, Requirement};
use wharf_model::topology::{Segments, keys, reaches, segments};
use wharf_model::volume::NodeAffinity;
use wharf_model::{CSINode, CSIStorageCapacity, Node, OwnerRef, StorageClass};

/// An object that there is to be: the room for volumes of one class in one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub(super) class: String,
    pub(super) place: Segments,
}

/// What is worked on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// The room for a class in a place.
    Item(Item),
    /// An object under our labels that tells of no place we could name: by name.
    Stray(String),
}

impl Subject {
    /// What an object is about.
    pub(super) fn of(object: &CSIStorageCapacity) -> Self {
        match &object.node_topology {
            Some(selector) if selector.match_expressions.is_empty() => Self::Item(Item {
                class: object.storage_class_name.clone(),
                place: selector.match_labels.clone(),
            }),
            _ => Self::Stray(object.metadata.name.clone()),
        }
    }

    /// For indexes and logs.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Item(Item { class, place }) => {
                let place: Vec<_> = place.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("{class}@{}", place.join(","))
            }
            Self::Stray(name) => format!("/{name}"),
        }
    }
}

/// What there is to be, each with the identity of its class.
pub(super) type Goal = BTreeMap<Item, String>;

/// All places of a driver: those of the nodes on which it has registered, by the labels it named there.
pub(super) fn places<'a>(
    driver: &str,
    nodes: impl IntoIterator<Item = (&'a CSINode, &'a Node)>,
) -> BTreeSet<Segments> {
    let place = |(csi_node, node): (&CSINode, &Node)| match keys(csi_node, driver) {
        [] => None,
        // A label that is missing is about to come, and this is asked again then.
        keys => segments(&node.metadata.labels, keys),
    };
    nodes.into_iter().filter_map(place).collect()
}

/// What there is to be: each place with each class of the driver for which the scheduler asks.
pub(super) fn goal<'a>(
    driver: &str,
    immediate: bool,
    places: &BTreeSet<Segments>,
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> Goal {
    let counts = |class: &&StorageClass| {
        class.provisioner == driver
            && !class.metadata.is_deleting()
            && (immediate || class.waits_for_first_consumer())
    };
    let mut goal = Goal::new();
    for class in classes.into_iter().filter(counts) {
        for place in places {
            let item = Item { class: class.metadata.name.clone(), place: place.clone() };
            goal.insert(item, class.metadata.uid.clone());
        }
    }
    goal
}

/// What there is to be and what there is, at one moment.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) goal: Goal,
    /// How many objects there are for each.
    pub(super) objects: BTreeMap<Subject, usize>,
}

/// Upstream's three numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Objects that there are to be.
    pub(super) goal: usize,
    /// How many of these there are.
    pub(super) current: usize,
    /// Objects that are about to go.
    pub(super) obsolete: usize,
}

impl Census {
    /// Counts.
    pub(super) fn new<'a>(goal: Goal, objects: impl IntoIterator<Item = &'a CSIStorageCapacity>) -> Self {
        let mut census = Self { goal, objects: BTreeMap::new() };
        for object in objects.into_iter().filter(|object| !object.metadata.is_deleting()) {
            *census.objects.entry(Subject::of(object)).or_default() += 1;
        }
        census
    }

    /// Whether there is to be such an object, and of which class.
    pub(super) fn wants(&self, subject: &Subject) -> Option<&str> {
        match subject {
            Subject::Item(item) => self.goal.get(item).map(String::as_str),
            Subject::Stray(_) => None,
        }
    }

    fn count(&self, subject: &Subject) -> usize {
        self.objects.get(subject).copied().unwrap_or_default()
    }

    /// What has to be looked at since an earlier census. What was wrong then already is not named again: it is
    /// being worked on, perhaps with pauses between failures.
    pub(super) fn news(&self, before: &Self) -> Vec<Subject> {
        let goals = self.goal.keys().chain(before.goal.keys()).cloned().map(Subject::Item);
        let subjects: BTreeSet<Subject> =
            goals.chain(self.objects.keys().cloned()).chain(before.objects.keys().cloned()).collect();
        let is_news = |subject: &Subject| {
            let (then, now) = (before.wants(subject), self.wants(subject));
            let right = self.count(subject) == usize::from(now.is_some());
            let same = then == now && before.count(subject) == self.count(subject);
            // A class that was deleted and made again may have other parameters.
            (!right && !same) || (now.is_some() && then != now)
        };
        subjects.into_iter().filter(is_news).collect()
    }

    /// Upstream's three numbers.
    pub(super) fn numbers(&self) -> Numbers {
        let wanted = |subject: &Subject| self.wants(subject).is_some();
        let (current, obsolete): (Vec<_>, Vec<_>) =
            self.objects.iter().partition(|(subject, _)| wanted(subject));
        Numbers {
            goal: self.goal.len(),
            current: current.len(),
            obsolete: obsolete.into_iter().map(|(_, count)| count).sum(),
        }
    }

    /// All items of a class.
    pub(super) fn of_class(&self, class: &str) -> Vec<Subject> {
        let first = Item { class: class.to_owned(), place: Segments::new() };
        let items = self.goal.range(first..).take_while(|(item, _)| item.class == class);
        items.map(|(item, _)| Subject::Item(item.clone())).collect()
    }

    /// All items whose room a volume with this affinity takes.
    pub(super) fn of_affinity(&self, affinity: &NodeAffinity) -> Vec<Subject> {
        let terms = affinity.required.iter().flat_map(|required| &required.node_selector_terms);
        let exact: Option<Vec<Segments>> = terms.map(exact_place).collect();
        let classes: BTreeSet<&String> = self.goal.keys().map(|item| &item.class).collect();
        let named: Vec<_> = exact
            .into_iter()
            .flatten()
            .flat_map(|place| {
                classes.iter().map(move |&class| Item { class: class.clone(), place: place.clone() })
            })
            .filter(|item| self.goal.contains_key(item))
            .collect();
        let items: Vec<Item> = match named.is_empty() {
            false => named,
            true => {
                self.goal.keys().filter(|item| reaches(Some(affinity), "", &item.place)).cloned().collect()
            }
        };
        items.into_iter().map(Subject::Item).collect()
    }
}

/// The one place that a term names; `None` if it is not so simple.
fn exact_place(term: &NodeSelectorTerm) -> Option<Segments> {
    let one = |requirement: &Requirement| match (requirement.operator, &requirement.values[..]) {
        (Operator::In, [value]) => Some((requirement.key.clone(), value.clone())),
        _ => None,
    };
    match term.match_fields.is_empty() {
        true => term.match_expressions.iter().map(one).collect(),
        false => None,
    }
}

/// What the driver said of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Room in all, in bytes.
    pub(super) capacity: i64,
    /// Room for one volume, if the driver knows.
    pub(super) maximum: Option<i64>,
}

/// One item, as [`decide`](super::decide::decide) sees it.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// There is to be one.
    pub(super) wanted: bool,
    /// Those that there are, without those in deletion.
    pub(super) objects: Vec<&'a CSIStorageCapacity>,
    /// What the driver said just now.
    pub(super) room: Option<Room>,
    /// Who is to own it.
    pub(super) owner: Option<&'a OwnerRef>,
}

#[cfg(test)]
mod tests;
