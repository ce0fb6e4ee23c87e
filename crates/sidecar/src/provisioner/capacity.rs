//! Publishes CSIStorageCapacity objects: the capacity for each class in each topology, for the scheduler.
//!
//! - There is one object for each topology of the driver and each class with late binding. All others, including
//!   duplicates, are deleted. Only objects with the sidecar's own labels are ever touched.
//! - An object is refreshed when volumes are created, deleted or expanded, when provisioning fails, and when a node
//!   or a class appears. GetCapacity is also polled at intervals.
//! - Many changes in a short time cost one call: at most one GetCapacity per second for an object.
//! - Few objects are refreshed concurrently, and writes have a limit of their own. Changes that happen while an object
//!   waits for its turn are combined. An object whose capacity is unchanged is not written.
//!
//! [`view`] computes the desired objects, [`decide`] has the rules for one object, [`act`] the requests.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use wharf_cluster::{ApiError, Change, Cluster, Priority, Queue, StoreEvent, jitter};
use wharf_model::{CSIStorageCapacity, Key, Kind, PersistentVolume};

use self::act::{CapacityApi, CapacityError};
use self::decide::{Step, decide};
use self::stores::Stores;
use self::view::{Capacity, Inventory, Subject, View};
use super::CapacitySettings;
use crate::context::Context;
use wharf_cluster::work::{StepLimit, Steps, WorkOutcome, WorkerOptions, run_workers};

mod act;
mod decide;
mod owner;
mod stores;
mod view;

/// The role's name in `/debug/attempts`.
const ROLE: &str = "capacity";
/// Changes within this time are handled together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Minimum time between calls for one object because of changed volumes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// An object takes a few steps. Duplicates are rare.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);

/// Requests refreshes when the capacity may have changed. Clones share the requests.
#[derive(Clone, Default)]
pub(crate) struct CapacityHandle {
    pending: Arc<PendingRefreshes>,
}

#[derive(Default)]
struct PendingRefreshes {
    classes: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl CapacityHandle {
    /// Requests a refresh for a class, after provisioning failed: its capacity may be exhausted. Created, deleted and
    /// expanded volumes need no request: the controller watches them.
    pub(crate) fn refresh_class(&self, class: &str) {
        let mut classes = self.pending.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes.insert(class.to_owned());
        self.pending.wake.notify_one();
    }

    async fn next(&self) -> BTreeSet<String> {
        loop {
            {
                let mut classes = self.pending.classes.lock().unwrap_or_else(PoisonError::into_inner);
                if !classes.is_empty() {
                    return std::mem::take(&mut classes);
                }
            }
            self.pending.wake.notified().await;
        }
    }
}

/// Publishes the objects until the gate stops.
pub(crate) async fn run(
    context: Context,
    worker_options: WorkerOptions,
    settings: CapacitySettings,
    pending: CapacityHandle,
) {
    let until_stop = async {
        if let Some(controller) = Controller::start(context.clone(), worker_options, &settings).await {
            controller.run(pending).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = until_stop => {}
        () = context.gate.wait_stopped() => {}
    }
}

/// The controller. Clones share its state.
#[derive(Clone)]
struct Controller {
    context: Context,
    /// Sends the writes, with their limit.
    writer: Cluster,
    worker_options: WorkerOptions,
    immediate: bool,
    poll: Duration,
    threads: usize,
    api: Arc<CapacityApi>,
    stores: Stores,
    queue: Queue<Subject>,
    state: Arc<Mutex<State>>,
    metrics: CapacityMetrics,
}

#[derive(Default)]
struct State {
    inventory: Inventory,
    /// When GetCapacity was last called.
    last_called: HashMap<Subject, Instant>,
}

impl Controller {
    async fn start(
        context: Context,
        worker_options: WorkerOptions,
        settings: &CapacitySettings,
    ) -> Option<Self> {
        if !context.driver.capabilities().get_capacity {
            tracing::warn!("driver does not report GET_CAPACITY; not publishing CSIStorageCapacity objects");
            return None;
        }
        let owner = match owner::owner(&context.cluster, &context.namespace, settings).await {
            Ok(owner) => owner,
            Err(error) => {
                tracing::warn!(%error, "CSIStorageCapacity objects have no owner reference and will not be garbage-collected");
                None
            }
        };
        let api = CapacityApi {
            namespace: context.namespace.clone(),
            driver: context.driver.name().to_owned(),
            node: context.node.as_ref().map(|node| node.name.clone()),
            owner,
        };
        let stores = Stores::open(&context, &api).await;
        let backoff = worker_options.backoff();
        Some(Self {
            queue: Queue::new("csistoragecapacity", backoff, context.cluster.metrics()),
            metrics: context.metrics.get_or_register(CapacityMetrics::register),
            writer: context.cluster.limited(settings.write_qps, settings.write_burst),
            context,
            worker_options,
            immediate: settings.immediate_binding,
            poll: settings.poll_interval,
            threads: settings.threads,
            api: Arc::new(api),
            stores,
            state: Arc::default(),
        })
    }

    async fn run(&self, pending: CapacityHandle) {
        let worked = run_workers(&self.queue, &self.context.gate, self.threads, |subject| {
            let controller = self.clone();
            async move { controller.reconcile(&subject).await }
        });
        tokio::join!(worked, self.watch_inputs(), self.watch_volumes(), self.watch_failures(pending));
    }

    /// Compares desired and existing objects whenever one of the inputs changes.
    async fn watch_inputs(&self) {
        let mut changes = self.stores.changes();
        loop {
            changes.next().await;
            self.sync();
            // Handle changes of this interval together.
            sleep(DEBOUNCE).await;
        }
    }

    fn sync(&self) {
        let Some(goal) = self.stores.goal(self.context.driver.name(), self.immediate) else { return };
        let objects = self.stores.capacities.all();
        let inventory = Inventory::new(goal, objects.iter().map(|object| &**object));
        self.metrics.set(inventory.counts());
        let mut state = self.lock();
        let changed = inventory.changed_since(&state.inventory);
        state.last_called.retain(|subject, _| inventory.wanted_class(subject).is_some());
        state.inventory = inventory;
        drop(state);
        for subject in changed {
            self.queue.reset_backoff(&subject);
            self.queue.add(subject, Priority::High);
        }
    }

    /// Refreshes the capacity when volumes are created, deleted or expanded.
    async fn watch_volumes(&self) {
        let driver = self.context.driver.name();
        let mut volumes = self.stores.volumes.subscribe();
        while let Some(notice) = volumes.next().await {
            // Existing volumes count at the next poll.
            let StoreEvent::Change(change) = notice else { continue };
            if let Some(volume) = changes_capacity(&change).filter(|volume| volume.is_for_driver(driver)) {
                let subjects = {
                    let state = self.lock();
                    match &volume.spec.node_affinity {
                        Some(affinity) => state.inventory.of_affinity(affinity),
                        None => state.inventory.of_class(&volume.spec.storage_class_name),
                    }
                };
                self.refresh(subjects);
            }
        }
    }

    async fn watch_failures(&self, pending: CapacityHandle) {
        loop {
            for class in pending.next().await {
                let subjects = self.lock().inventory.of_class(&class);
                self.refresh(subjects);
            }
        }
    }

    /// Enqueues subjects whose capacity may have changed.
    fn refresh(&self, subjects: Vec<Subject>) {
        let now = Instant::now();
        for subject in subjects {
            let last_called = self.lock().last_called.get(&subject).copied();
            self.queue.add_after(subject, refresh_delay(last_called, now));
        }
    }

    /// Reconciles one subject.
    async fn reconcile(&self, subject: &Subject) -> WorkOutcome {
        let mut capacity = None;
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let text = subject.text();
            let objects = self.stores.capacities.by_index(stores::BY_SUBJECT, &text);
            let wanted = self.lock().inventory.wanted_class(subject).is_some();
            let present =
                objects.iter().map(|object| &**object).filter(|object| !object.metadata.is_deleting());
            let view = View { wanted, objects: present.collect(), capacity, owner: self.api.owner.as_ref() };
            let step = decide(&view);
            let (name, done) = match &step {
                Step::Done { poll_again } => {
                    if !wanted {
                        self.context.attempts.remove(ROLE, &text);
                    }
                    // Not `reset`: that would drop the delay of a refresh that was requested in between.
                    self.queue.clear_failures(subject);
                    return if *poll_again { self.next_poll() } else { WorkOutcome::Done };
                }
                Step::GetCapacity => ("GetCapacity", self.get_capacity(subject).await),
                Step::Create(capacity) => ("create", self.create(subject, *capacity).await),
                Step::Update(object, capacity) => ("update", self.update(object, *capacity).await),
                Step::Delete(object) => ("delete", self.delete(object).await),
            };
            let error = done.as_ref().err().map(ToString::to_string);
            if let Some(error) = &error {
                tracing::warn!(key = text, step = name, error, "failed to update CSIStorageCapacity");
            }
            self.context.attempts.record(ROLE, &text, name, error);
            match done {
                Ok(Next::Continue(available)) => capacity = available.or(capacity),
                Ok(Next::WaitForPoll) => {
                    self.queue.clear_failures(subject);
                    return self.next_poll();
                }
                Ok(Next::RetrySoon) => return WorkOutcome::RetryAfter(DEBOUNCE),
                Ok(Next::Stop) => return WorkOutcome::Done,
                Err(_) => return WorkOutcome::Retry,
            }
        }
        steps.unfinished(subject)
    }

    async fn get_capacity(&self, subject: &Subject) -> Result<Next, CapacityError> {
        let Subject::Item(item) = subject else { return Ok(Next::Stop) };
        // The class was deleted since the last comparison. The next one handles that.
        let key = Key::cluster(&item.class);
        let Some(class) = self.stores.classes.get(&key) else { return Ok(Next::Stop) };
        self.lock().last_called.insert(subject.clone(), Instant::now());
        let capacity =
            act::get_capacity(&self.context.driver, self.worker_options.timeout, item, &class).await?;
        Ok(Next::Continue(Some(capacity)))
    }

    /// After a create or update the subject waits for the next poll: if the object does not appear in the store, it
    /// would be written again and again.
    async fn create(&self, subject: &Subject, capacity: Capacity) -> Result<Next, CapacityError> {
        let Subject::Item(item) = subject else { return Ok(Next::Stop) };
        self.api.create(&self.writer, item, capacity).await?;
        tracing::info!(key = subject.text(), bytes = capacity.available, "created CSIStorageCapacity");
        Ok(Next::WaitForPoll)
    }

    async fn update(&self, object: &CSIStorageCapacity, capacity: Capacity) -> Result<Next, CapacityError> {
        match self.api.update(&self.writer, object, capacity).await {
            Ok(()) => {
                tracing::debug!(
                    key = Subject::of(object).text(),
                    bytes = capacity.available,
                    "updated CSIStorageCapacity"
                );
                Ok(Next::WaitForPoll)
            }
            // It changed concurrently: decide again.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(Next::RetrySoon),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, object: &CSIStorageCapacity) -> Result<Next, CapacityError> {
        match self.api.delete(&self.writer, object).await {
            Ok(()) => {
                tracing::info!(key = Subject::of(object).text(), name = %object.key(), "deleted CSIStorageCapacity");
                Ok(Next::Continue(None))
            }
            // It is deleted or replaced already; the store lags.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(Next::RetrySoon),
            Err(error) => Err(error.into()),
        }
    }

    /// The next poll, with jitter to spread the calls.
    fn next_poll(&self) -> WorkOutcome {
        WorkOutcome::RetryAfter(self.poll.mul_f64(1.0 - 0.2 * jitter()).max(DEBOUNCE))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the reconcile loop does after a successful step.
enum Next {
    /// Decide again, with the driver's response if there is one.
    Continue(Option<Capacity>),
    /// Wait for the next poll.
    WaitForPoll,
    /// Decide again when the store has caught up.
    RetrySoon,
    /// Leave the subject: it no longer exists.
    Stop,
}

/// How long a requested refresh is delayed.
fn refresh_delay(last_called: Option<Instant>, now: Instant) -> Duration {
    let rest = last_called
        .map(|last_called| MIN_INTERVAL.saturating_sub(now.saturating_duration_since(last_called)));
    rest.unwrap_or_default().max(DEBOUNCE)
}

/// The volume, if the change affects the available capacity.
fn changes_capacity(change: &Change<PersistentVolume>) -> Option<&PersistentVolume> {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => (old.spec.capacity != new.spec.capacity).then_some(&**new),
        (Some(volume), None) | (None, Some(volume)) => Some(&**volume),
        (None, None) => None,
    }
}

/// Upstream's metrics.
#[derive(Clone, Default)]
struct CapacityMetrics {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl CapacityMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "csistoragecapacities_desired_goal",
            "Number of CSIStorageCapacity objects that should exist",
            metrics.goal.clone(),
        );
        registry.register(
            "csistoragecapacities_desired_current",
            "Number of CSIStorageCapacity objects that exist and should exist",
            metrics.current.clone(),
        );
        registry.register(
            "csistoragecapacities_obsolete",
            "Number of CSIStorageCapacity objects that will be deleted",
            metrics.obsolete.clone(),
        );
        metrics
    }

    fn set(&self, counts: view::Counts) {
        let view::Counts { goal, current, obsolete } = counts;
        for (gauge, number) in [(&self.goal, goal), (&self.current, current), (&self.obsolete, obsolete)] {
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::{Capabilities, Driver, DriverInfo};
    use crate::provisioner::testing::context;

    /// Finding S-M4. The objects of a class that was deleted are all deleted at once, without a call to the driver.
    #[tokio::test(start_paused = true)]
    async fn capacity_writes_are_limited() {
        let writes = Arc::<Mutex<Vec<u64>>>::default();
        let (record, started) = (Arc::clone(&writes), Instant::now());
        let context = context(move |method, path, _| {
            let object = |index: u32| {
                json!({
                    "metadata": {"name": format!("c{index}"), "namespace": "ns", "uid": "u", "resourceVersion": "1"},
                    "storageClassName": format!("gone-{index}"), "nodeTopology": {}, "capacity": "1Gi",
                })
            };
            let items: Vec<_> = match path.ends_with("/csistoragecapacities") {
                true => (0..8).map(object).collect(),
                false => Vec::new(),
            };
            if method == "DELETE" {
                record.lock().unwrap().push(started.elapsed().as_secs());
            }
            (200, json!({"kind": "Status", "metadata": {"resourceVersion": "1"}, "items": items}))
        });
        let capabilities = Capabilities { get_capacity: true, ..Capabilities::default() };
        let driver = DriverInfo { name: "d.test".into(), capabilities, ..DriverInfo::default() };
        let context = Context { driver: Driver::unreachable(driver), node: None, ..context };
        let settings = CapacitySettings::default();
        let options = WorkerOptions::with_timeout(Duration::from_secs(10));
        let controller = Controller::start(context, options, &settings).await.unwrap();
        let run = controller.run(CapacityHandle::default());
        assert!(tokio::time::timeout(Duration::from_millis(3500), run).await.is_err());
        assert_eq!(*writes.lock().unwrap(), [0, 0, 0, 0, 0, 1, 2, 3]);
    }

    #[test]
    fn refresh_is_debounced_and_rate_limited() {
        let now = Instant::now();
        for (ago, pause_millis) in
            [(None, 200), (Some(0), 1000), (Some(300), 700), (Some(900), 200), (Some(5000), 200)]
        {
            let last_called = ago.map(|ago| now - Duration::from_millis(ago));
            assert_eq!(refresh_delay(last_called, now), Duration::from_millis(pause_millis), "{ago:?}");
        }
    }

    /// sidecars.md 1.1 "Capacity": refresh on provision and delete; here on expansion too.
    #[test]
    fn created_deleted_and_expanded_volumes_change_capacity() {
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
            assert_eq!(changes_capacity(&change).is_some(), expected, "{change:?}");
        }
    }

    #[tokio::test]
    async fn refresh_request_is_delivered_once() {
        let handle = CapacityHandle::default();
        for class in ["a", "b", "a"] {
            handle.refresh_class(class);
        }
        assert_eq!(handle.next().await, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let next = tokio::time::timeout(Duration::from_millis(10), handle.next()).await;
        assert!(next.is_err());
    }
}
