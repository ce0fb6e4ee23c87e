//! CSIStorageCapacity: how much room there is for each class in each place, for the scheduler.
//!
//! - One object for each place of the driver and each class that waits for a pod; others go, also duplicates.
//!   Only objects under our own labels are ever touched.
//! - Written when something changes: when volumes come, go or grow, when one could not be made, when a node or a
//!   class appears. The driver is asked at intervals besides.
//! - Many changes in a short time cost one question: a place is asked about at most once a second.
//!
//! What there is to be is in [`view`], the rules for one object in [`decide`], requests in [`act`].

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use wharf_cluster::{ApiError, Change, Notice, Priority, Queue, jitter};
use wharf_model::{CSIStorageCapacity, Key, Kind, PersistentVolume};

use self::act::{CapacityError, Keeper};
use self::decide::{Step, decide};
use self::stores::Stores;
use self::view::{Census, Room, Subject, View};
use super::CapacitySettings;
use crate::context::Context;
use wharf_cluster::work::{Outcome, Pace, work};

mod act;
mod decide;
mod owner;
mod stores;
mod view;

/// The role's name where attempts are told.
const ROLE: &str = "capacity";
/// Changes within so short a time are one.
const GATHER: Duration = Duration::from_millis(200);
/// A place is not asked about more often because of volumes.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Items worked on at once: few, since the scheduler can wait and claims cannot.
const WORKERS: usize = 4;
/// Where others say that there may be more or less room than before; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct CapacityHandle {
    touched: Arc<Touched>,
}

#[derive(Default)]
struct Touched {
    classes: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl CapacityHandle {
    /// A volume of this class could not be made: perhaps there is no room. Volumes that were made, deleted or
    /// expanded need not be told: they are seen.
    pub(crate) fn touched_class(&self, class: &str) {
        let mut classes = self.touched.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes.insert(class.to_owned());
        self.touched.wake.notify_one();
    }

    async fn next(&self) -> BTreeSet<String> {
        loop {
            {
                let mut classes = self.touched.classes.lock().unwrap_or_else(PoisonError::into_inner);
                if !classes.is_empty() {
                    return std::mem::take(&mut classes);
                }
            }
            self.touched.wake.notified().await;
        }
    }
}

/// Keeps the objects until the stop.
pub(crate) async fn run(context: Context, pace: Pace, settings: CapacitySettings, touched: CapacityHandle) {
    let until_stop = async {
        if let Some(controller) = Controller::start(context.clone(), pace, &settings).await {
            controller.run(touched).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = until_stop => {}
        () = context.gate.stopped() => {}
    }
}

/// The controller; clones are the same one.
#[derive(Clone)]
struct Controller {
    context: Context,
    pace: Pace,
    immediate: bool,
    poll: Duration,
    keeper: Arc<Keeper>,
    stores: Stores,
    queue: Queue<Subject>,
    state: Arc<Mutex<State>>,
    numbers: Numbers,
}

#[derive(Default)]
struct State {
    census: Census,
    /// When the driver was last asked.
    asked: HashMap<Subject, Instant>,
}

impl Controller {
    async fn start(context: Context, pace: Pace, settings: &CapacitySettings) -> Option<Self> {
        if !context.driver.can().get_capacity {
            tracing::warn!(
                "the driver cannot tell its capacity (GET_CAPACITY), so no CSIStorageCapacity is kept"
            );
            return None;
        }
        let owner = match owner::owner(&context.cluster, &context.namespace, settings).await {
            Ok(owner) => owner,
            Err(error) => {
                tracing::warn!(%error, "capacities have no owner and stay when the driver is uninstalled");
                None
            }
        };
        let keeper = Keeper {
            namespace: context.namespace.clone(),
            driver: context.driver.name().to_owned(),
            node: context.node.as_ref().map(|node| node.name.clone()),
            owner,
        };
        let stores = Stores::open(&context, &keeper).await;
        let backoff = pace.backoff();
        Some(Self {
            queue: Queue::new("csistoragecapacity", backoff, context.cluster.metrics()),
            numbers: context.metrics.family(Numbers::register),
            context,
            pace,
            immediate: settings.immediate_binding,
            poll: settings.poll_interval,
            keeper: Arc::new(keeper),
            stores,
            state: Arc::default(),
        })
    }

    async fn run(&self, touched: CapacityHandle) {
        let worked = work(&self.queue, &self.context.gate, WORKERS, |subject| {
            let controller = self.clone();
            async move { controller.one(&subject).await }
        });
        tokio::join!(worked, self.survey(), self.follow_volumes(), self.follow_failures(touched));
    }

    /// Looks at what there is and what there is to be, whenever that may have changed.
    async fn survey(&self) {
        let mut changes = self.stores.changes();
        loop {
            changes.next().await;
            self.look();
            // What comes meanwhile is looked at together.
            sleep(GATHER).await;
        }
    }

    fn look(&self) {
        let Some(goal) = self.stores.goal(self.context.driver.name(), self.immediate) else { return };
        let objects = self.stores.capacities.all();
        let census = Census::new(goal, objects.iter().map(|object| &**object));
        self.numbers.set(census.numbers());
        let mut state = self.lock();
        let news = census.news(&state.census);
        state.asked.retain(|subject, _| census.wants(subject).is_some());
        state.census = census;
        drop(state);
        for subject in news {
            self.queue.reset(&subject);
            self.queue.add(subject, Priority::High);
        }
    }

    /// Volumes that come, go or grow take room or leave it.
    async fn follow_volumes(&self) {
        let driver = self.context.driver.name();
        let mut volumes = self.stores.volumes.changes();
        while let Some(notice) = volumes.next().await {
            // What was there before we looked counts at the next poll.
            let Notice::Change(change) = notice else { continue };
            if let Some(volume) = takes_room(&change).filter(|volume| volume.is_of(driver)) {
                let subjects = {
                    let state = self.lock();
                    match &volume.spec.node_affinity {
                        Some(affinity) => state.census.of_affinity(affinity),
                        None => state.census.of_class(&volume.spec.storage_class_name),
                    }
                };
                self.touch(subjects);
            }
        }
    }

    async fn follow_failures(&self, touched: CapacityHandle) {
        loop {
            for class in touched.next().await {
                let subjects = self.lock().census.of_class(&class);
                self.touch(subjects);
            }
        }
    }

    /// There may be more or less room here.
    fn touch(&self, subjects: Vec<Subject>) {
        let now = Instant::now();
        for subject in subjects {
            let asked = self.lock().asked.get(&subject).copied();
            self.queue.add_after(subject, pause(asked, now));
        }
    }

    /// Brings one item to what it should be.
    async fn one(&self, subject: &Subject) -> Outcome {
        let mut room = None;
        loop {
            if !self.context.gate.is_open() {
                return Outcome::After(Duration::ZERO);
            }
            let text = subject.text();
            let objects = self.stores.capacities.by_index(stores::BY_SUBJECT, &text);
            let wanted = self.lock().census.wants(subject).is_some();
            let present =
                objects.iter().map(|object| &**object).filter(|object| !object.metadata.is_deleting());
            let view = View { wanted, objects: present.collect(), room, owner: self.keeper.owner.as_ref() };
            let step = decide(&view);
            let (name, done) = match &step {
                Step::Done { again } => {
                    if !wanted {
                        self.context.attempts.forget(ROLE, &text);
                    }
                    // Not `reset`: a volume that came meanwhile would have the driver asked again at once.
                    self.queue.forgive(subject);
                    return if *again { self.next_poll() } else { Outcome::Done };
                }
                Step::Ask => ("ask", self.ask(subject).await),
                Step::Create(room) => ("create", self.create(subject, *room).await),
                Step::Update(object, room) => ("update", self.update(object, *room).await),
                Step::Delete(object) => ("delete", self.delete(object).await),
            };
            let error = done.as_ref().err().map(ToString::to_string);
            if let Some(error) = &error {
                tracing::warn!(capacity = text, step = name, error, "a capacity is not up to date");
            }
            self.context.attempts.note(ROLE, &text, name, error);
            match done {
                Ok(After::Look(told)) => room = told.or(room),
                Ok(After::Poll) => {
                    self.queue.forgive(subject);
                    return self.next_poll();
                }
                Ok(After::Soon) => return Outcome::After(GATHER),
                Ok(After::Gone) => return Outcome::Done,
                Err(_) => return Outcome::Retry,
            }
        }
    }

    async fn ask(&self, subject: &Subject) -> Result<After, CapacityError> {
        let Subject::Item(item) = subject else { return Ok(After::Gone) };
        // Gone since the last survey: the next one sees that too.
        let key = Key::cluster(&item.class);
        let Some(class) = self.stores.classes.get(&key) else { return Ok(After::Gone) };
        self.lock().asked.insert(subject.clone(), Instant::now());
        let room = act::ask(&self.context.driver, self.pace.timeout, item, &class).await?;
        Ok(After::Look(Some(room)))
    }

    /// What was created or changed is looked at no more this time: should it not enter our store, we would do it
    /// over and over.
    async fn create(&self, subject: &Subject, room: Room) -> Result<After, CapacityError> {
        let Subject::Item(item) = subject else { return Ok(After::Gone) };
        self.keeper.create(&self.context.cluster, item, room).await?;
        tracing::info!(capacity = subject.text(), bytes = room.capacity, "capacity created");
        Ok(After::Poll)
    }

    async fn update(&self, object: &CSIStorageCapacity, room: Room) -> Result<After, CapacityError> {
        match self.keeper.update(&self.context.cluster, object, room).await {
            Ok(()) => {
                tracing::debug!(
                    capacity = Subject::of(object).text(),
                    bytes = room.capacity,
                    "capacity updated"
                );
                Ok(After::Poll)
            }
            // It is not as it was: look again.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(After::Soon),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, object: &CSIStorageCapacity) -> Result<After, CapacityError> {
        match self.keeper.delete(&self.context.cluster, object).await {
            Ok(()) => {
                tracing::info!(capacity = Subject::of(object).text(), object = %object.key(), "capacity deleted");
                Ok(After::Look(None))
            }
            // Somebody else has; our store is about to know.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(After::Soon),
            Err(error) => Err(error.into()),
        }
    }

    /// Not all at the same moment.
    fn next_poll(&self) -> Outcome {
        Outcome::After(self.poll.mul_f64(1.0 - 0.2 * jitter()).max(GATHER))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows a step that went well.
enum After {
    /// A fresh look, perhaps with what the driver said.
    Look(Option<Room>),
    /// Nothing until the next poll.
    Poll,
    /// A look when our stores have caught up.
    Soon,
    /// Nothing: there is nothing to look at.
    Gone,
}

/// How long a touched item waits.
fn pause(asked: Option<Instant>, now: Instant) -> Duration {
    let rest = asked.map(|asked| AT_MOST_EVERY.saturating_sub(now.saturating_duration_since(asked)));
    rest.unwrap_or_default().max(GATHER)
}

/// The volume of a change that takes room or leaves it.
fn takes_room(change: &Change<PersistentVolume>) -> Option<&PersistentVolume> {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => (old.spec.capacity != new.spec.capacity).then_some(&**new),
        (Some(volume), None) | (None, Some(volume)) => Some(&**volume),
        (None, None) => None,
    }
}

/// Upstream's gauges.
#[derive(Clone, Default)]
struct Numbers {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl Numbers {
    fn register(registry: &mut Registry) -> Self {
        let numbers = Self::default();
        registry.register(
            "csistoragecapacities_desired_goal",
            "CSIStorageCapacity objects that there are to be",
            numbers.goal.clone(),
        );
        registry.register(
            "csistoragecapacities_desired_current",
            "CSIStorageCapacity objects that there are, of those that there are to be",
            numbers.current.clone(),
        );
        registry.register(
            "csistoragecapacities_obsolete",
            "CSIStorageCapacity objects that are about to be deleted",
            numbers.obsolete.clone(),
        );
        numbers
    }

    fn set(&self, numbers: view::Numbers) {
        let view::Numbers { goal, current, obsolete } = numbers;
        for (gauge, number) in [(&self.goal, goal), (&self.current, current), (&self.obsolete, obsolete)] {
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_touched_item_waits_for_company_and_for_its_turn() {
        let now = Instant::now();
        for (ago, pause_millis) in
            [(None, 200), (Some(0), 1000), (Some(300), 700), (Some(900), 200), (Some(5000), 200)]
        {
            let asked = ago.map(|ago| now - Duration::from_millis(ago));
            assert_eq!(pause(asked, now), Duration::from_millis(pause_millis), "{ago:?}");
        }
    }

    /// sidecars.md 1.1 "Capacity": refresh on provision and delete; here on expansion too.
    #[test]
    fn volumes_that_come_go_or_grow_take_room() {
        let volume = |size: &str, phase: &str| -> Option<Arc<PersistentVolume>> {
            let object = json!({"spec": {"capacity": {"storage": size}}, "status": {"phase": phase}});
            Some(Arc::new(serde_json::from_value(object).unwrap()))
        };
        for (old, new, expected) in [
            (None, volume("1Gi", "Pending"), true),
            (volume("1Gi", "Released"), None, true),
            (volume("1Gi", "Bound"), volume("2Gi", "Bound"), true),
            (volume("1Gi", "Bound"), volume("1Gi", "Released"), false),
        ] {
            let change = Change { key: Key::cluster("v"), old, new };
            assert_eq!(takes_room(&change).is_some(), expected, "{change:?}");
        }
    }

    #[tokio::test]
    async fn what_was_touched_is_told_once() {
        let handle = CapacityHandle::default();
        for class in ["a", "b", "a"] {
            handle.touched_class(class);
        }
        assert_eq!(handle.next().await, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let next = tokio::time::timeout(Duration::from_millis(10), handle.next()).await;
        assert!(next.is_err());
    }
}
