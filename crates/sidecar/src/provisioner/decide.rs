//! Provisioning rules: given everything known about one volume, the next step.
//!
//! Pure functions: no I/O, and the time is a parameter. [`decide`] is the entry point. It distinguishes three cases by
//! what exists:
//!
//! - A PersistentVolume: finish its intent, then keep or delete it by the rules of [`reclaim`](super::reclaim).
//! - An intent without a PersistentVolume: repeat the call until the driver gives a final response, then save or undo
//!   what it created, whatever happened to the claim, its class and its node. If the claim is gone, or a new attempt
//!   would send another request, the repetition is bounded by [`Doubt`](crate::doubt::Doubt). Then what may exist is
//!   recorded as a suspect, the intent is dropped, and the claim starts again.
//! - Neither: a claim may need a volume.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wharf_model::migration::{self, TranslationError};
use wharf_model::names::annotation;
use wharf_model::topology::{self, SelectedNode, TopologyError, TopologyRequirement};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, SecretRef, StorageClass, Time};

use super::competition::{Ownership, ownership};
use super::intent::{ContentSource, Intent, IntentTopology};
use super::reclaim::{self, ReclaimStep, ReclaimView};
use super::request::{self, CreateRequest, RequestError};
use super::source::{self, Source, SourceError, SourceRef, SourceView};
use super::view::{
    AttributesClass, CreateOutcome, CreatedVolume, Fetched, Now, ProvisionState, ProvisionView,
    ProvisionerConfig,
};
use super::volume::{self, InvalidVolume};

/// If the claim is gone and its intent is older than this, Wharf has not run for that time. An operator may have
/// retained the volume on purpose, so it is retained and not deleted.
const RETAIN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The next step for a volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProvisionStep {
    /// Do nothing until something changes.
    Idle(Reason),
    /// Drop the in-process state.
    DropState,
    /// Wait. With `competing`, the time counts towards the delay before this node competes for the claim.
    Wait { reason: Reason, pause: Duration, competing: bool },
    /// Record that a volume populator provisions the claim.
    LeaveToPopulator,
    /// Compete with other nodes for the claim.
    CompeteForClaim,
    /// Read the objects that no store holds from the server.
    FetchSources,
    /// Prevent the deletion of the data source.
    ProtectSource(Source),
    /// Record why the claim cannot be provisioned, and retry later. The driver is not called.
    Refuse(Refusal),
    /// Record why, and let the scheduler choose another node.
    UnselectNode(Unselect),
    /// Write the intent to the journal.
    WriteIntent(Box<Intent>),
    /// Call CreateVolume. `wanted`: a claim waits for the result.
    CreateVolume { intent: Arc<Intent>, wanted: bool },
    /// Create the PersistentVolume. `retain` overrides the reclaim policy of the class.
    SavePv { intent: Arc<Intent>, object: Value, retain: bool },
    /// Delete what the driver created. `other_pv_uid` is the UID of a PersistentVolume of the same name that is not
    /// ours.
    DeleteCreated {
        intent: Arc<Intent>,
        handle: String,
        problem: InvalidVolume,
        other_pv_uid: Option<String>,
    },
    /// Remove the intent: no volume exists or, with `suspect`, it is not known whether one does; then record that first.
    /// With `retry`, start again after the backoff.
    DropIntent { intent: Arc<Intent>, retry: bool, suspect: bool },
    /// The PersistentVolume exists: remove the intent. `handle_owner` is another PersistentVolume that has the handle.
    FinishIntent { intent: Arc<Intent>, handle_owner: Option<String> },
    /// A step of the PersistentVolume's own lifecycle.
    Reclaim(ReclaimStep),
}

/// Why a volume is idle or waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    NoClaim,
    OtherProvisioner,
    Bound,
    Deleting,
    NoClass(String),
    ClassOfOtherProvisioner { class: String, provisioner: String },
    NoNodeSelected,
    NotThisNode(&'static str),
    Competing,
    Infeasible,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClaim => f.write_str("no claim needs this volume"),
            Self::OtherProvisioner => f.write_str("the claim is for another provisioner"),
            Self::Bound => f.write_str("the claim is bound to a volume"),
            Self::Deleting => f.write_str("the claim is being deleted"),
            Self::NoClass(class) => write!(f, "StorageClass {class:?} does not exist"),
            Self::ClassOfOtherProvisioner { class, provisioner } => {
                write!(f, "StorageClass {class:?} now belongs to provisioner {provisioner:?}")
            }
            Self::NoNodeSelected => {
                f.write_str("waiting for the scheduler to select a node for the claim's first pod")
            }
            Self::NotThisNode(reason) => f.write_str(reason),
            Self::Competing => f.write_str("waiting before competing with other nodes for the claim"),
            Self::Infeasible => f.write_str(
                "the driver cannot provide such a volume; retries are delayed until the class changes",
            ),
        }
    }
}

/// Why a claim cannot be provisioned, found before the driver is called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("claim Selector is not supported")]
    Selector,
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("error generating accessibility requirements: {0}")]
    Topology(#[from] TopologyError),
    #[error("failed to translate storage class: {0}")]
    Translation(#[from] TranslationError),
    #[error("VolumeAttributesClass {0} does not exist")]
    NoAttributesClass(String),
    #[error("VolumeAttributesClass {name} belongs to driver {driver}, not to {expected}")]
    AttributesClassOfOtherDriver { name: String, driver: String, expected: String },
    #[error("the driver does not support VolumeAttributesClass: it does not report MODIFY_VOLUME")]
    CannotModify,
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    NameTaken(#[from] InvalidVolume),
}

/// Why the scheduler has to select another node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unselect {
    /// The driver reported it, and an event was recorded then.
    #[error("no capacity in the topology of the selected node")]
    Exhausted,
    #[error("error generating accessibility requirements: {0}")]
    Topology(TopologyError),
}

/// Decides the next step for a volume.
pub(crate) fn decide(view: &ProvisionView<'_>, now: Now) -> ProvisionStep {
    match (view.pv, view.intent) {
        (Some(pv), Some(intent)) => finish_intent(view, pv, intent),
        (Some(pv), None) => reconcile_pv(view, pv, now),
        (None, Some(intent)) => complete_intent(view, intent, now),
        (None, None) => match start(view, now) {
            // The claim is gone or not ours any more: its state is useless.
            ProvisionStep::Idle(_) if *view.state != ProvisionState::default() => ProvisionStep::DropState,
            step => step,
        },
    }
}

/// The secret for CreateVolume, and for DeleteVolume if the result has to be undone.
pub(crate) fn secret(intent: &Intent) -> Option<SecretRef> {
    let (namespace, name) = intent.request.secret.clone()?;
    Some(SecretRef { name, namespace })
}

/// The PersistentVolume exists: reclaim rules apply. A claim that would get the same name without being bound to it
/// gets an error.
fn reconcile_pv(view: &ProvisionView<'_>, pv: &PersistentVolume, now: Now) -> ProvisionStep {
    let step = reclaim::decide(&ReclaimView {
        volume: pv,
        class: view.pv_class,
        driver: &view.config.driver,
        attached: view.attached,
        siblings: view.siblings,
        node: view.config.node.as_ref(),
        state: &view.state.reclaim,
    });
    let needs_volume = |claim: &&PersistentVolumeClaim| {
        !pv.is_bound_to(&claim.metadata) && class_to_provision(view, claim, now).is_ok()
    };
    match (step, view.claim.filter(needs_volume)) {
        (ReclaimStep::Idle(_), Some(_)) => {
            ProvisionStep::Refuse(InvalidVolume::NameTaken { name: view.volume.to_owned() }.into())
        }
        (step, _) => ProvisionStep::Reclaim(step),
    }
}

/// A PersistentVolume with the intent's name exists. If it is not the intent's, no object refers to the volume that
/// the driver may have created for the intent: repeat the call to find it, then delete it. A volume that the
/// PersistentVolume may have is kept.
fn finish_intent(view: &ProvisionView<'_>, pv: &PersistentVolume, intent: &Arc<Intent>) -> ProvisionStep {
    let created = view.state.created();
    if volume::matches_intent(pv, intent, view.config, created.map(|created| &**created)) {
        return ProvisionStep::FinishIntent { intent: Arc::clone(intent), handle_owner: None };
    }
    if volume::may_be_of_intent(pv, intent, view.config) {
        let handle_owner = Some(pv.metadata.name.clone());
        return ProvisionStep::FinishIntent { intent: Arc::clone(intent), handle_owner };
    }
    match (&view.state.outcome, created) {
        (None, _) if !view.state.create_unsent => {
            ProvisionStep::CreateVolume { intent: Arc::clone(intent), wanted: false }
        }
        (_, Some(created)) => {
            let name = view.volume.to_owned();
            let problem = match volume::is_for_claim(pv, intent) {
                true => InvalidVolume::NotNeeded { name },
                false => InvalidVolume::NameTaken { name },
            };
            delete_created(view, intent, created, problem, Some(pv.metadata.uid.clone()))
        }
        _ => ProvisionStep::DropIntent {
            intent: Arc::clone(intent),
            retry: false,
            suspect: view.state.may_leave_volume(),
        },
    }
}

/// An intent exists but no PersistentVolume: call the driver, or act on its last response.
fn complete_intent(view: &ProvisionView<'_>, intent: &Arc<Intent>, now: Now) -> ProvisionStep {
    let suspect = view.state.may_leave_volume();
    let drop_intent = |retry| ProvisionStep::DropIntent { intent: Arc::clone(intent), retry, suspect };
    let claim = view.claim;
    match &view.state.outcome {
        // The claim is gone and CreateVolume was never sent: nothing can have been created.
        None if view.state.create_unsent && claim.is_none() => drop_intent(false),
        None => {
            let wanted = is_wanted(view, intent, now);
            ProvisionStep::CreateVolume { intent: Arc::clone(intent), wanted }
        }
        Some(CreateOutcome::Created(created)) => {
            let retain = claim.is_none() && now.wall > Time(intent.written).plus(RETAIN_AFTER);
            let problem = volume::validate(intent, created).or(save_rejection(view.state));
            let object = problem.map_or_else(|| volume::build_pv(intent, created, view.config, retain), Err);
            match object {
                Err(problem) => delete_created(view, intent, created, problem, None),
                Ok(object) => ProvisionStep::SavePv { intent: Arc::clone(intent), object, retain },
            }
        }
        Some(CreateOutcome::Refused | CreateOutcome::CleanedUp | CreateOutcome::Unknown) => {
            drop_intent(claim.is_some())
        }
        Some(CreateOutcome::Exhausted) => {
            drop_intent(claim.is_some_and(|claim| !can_reschedule(view.config, claim)))
        }
        Some(CreateOutcome::Infeasible { .. }) => drop_intent(false),
    }
}

/// Whether the claim still needs what the intent requests, so that a new attempt would repeat the call anyway. The fields
/// of claim and class that the rest of the request depends on cannot change.
fn is_wanted(view: &ProvisionView<'_>, intent: &Intent, now: Now) -> bool {
    let Some(claim) = view.claim else { return false };
    let Ok(class) = class_to_provision(view, claim, now) else { return false };
    let Ok(class) = migration::class_for_driver(class, &view.config.driver) else { return false };
    let Ok(topology) = topology_requirement(view, claim, &class) else { return false };
    let same_place = match (&intent.request.topology, topology.map(IntentTopology::from)) {
        (None, None) => true,
        (Some(requested), Some(needed)) => requested.is_for(&needed, claim.selected_node().is_some()),
        (Some(_), None) | (None, Some(_)) => false,
    };
    class.metadata.uid == intent.class_uid && same_place
}

/// The API server's rejection of the PersistentVolume, if there was one.
fn save_rejection(state: &ProvisionState) -> Option<InvalidVolume> {
    state.save_error.clone().map(InvalidVolume::Rejected)
}

/// Deletes the created volume, unless a PersistentVolume refers to its handle.
fn delete_created(
    view: &ProvisionView<'_>,
    intent: &Arc<Intent>,
    created: &CreatedVolume,
    problem: InvalidVolume,
    other_pv_uid: Option<String>,
) -> ProvisionStep {
    match view.handle_owner {
        Some(handle_owner) => ProvisionStep::FinishIntent {
            intent: Arc::clone(intent),
            handle_owner: Some(handle_owner.to_owned()),
        },
        None => ProvisionStep::DeleteCreated {
            intent: Arc::clone(intent),
            handle: created.handle.clone(),
            problem,
            other_pv_uid,
        },
    }
}

/// Whether another node may have capacity.
pub(crate) fn can_reschedule(config: &ProvisionerConfig, claim: &PersistentVolumeClaim) -> bool {
    config.capabilities.topology && claim.selected_node().is_some()
}

/// The class to provision the claim with, or why the claim is not provisioned.
fn select_class<'a>(
    view: &ProvisionView<'a>,
    claim: &PersistentVolumeClaim,
) -> Result<&'a StorageClass, Reason> {
    let driver = view.config.driver.as_str();
    let migrated = claim.metadata.annotation(annotation::MIGRATED_TO);
    if claim.provisioner() != Some(driver) && migrated != Some(driver) {
        return Err(Reason::OtherProvisioner);
    }
    if !claim.spec.volume_name.is_empty() {
        return Err(Reason::Bound);
    }
    if claim.metadata.is_deleting() {
        return Err(Reason::Deleting);
    }
    let name = || claim.class().unwrap_or_default().to_owned();
    let class = view.class.ok_or_else(|| Reason::NoClass(name()))?;
    if !migration::provisions(driver, &class.provisioner) {
        return Err(Reason::ClassOfOtherProvisioner {
            class: name(),
            provisioner: class.provisioner.clone(),
        });
    }
    if class.waits_for_first_consumer() && claim.selected_node().is_none() {
        return Err(Reason::NoNodeSelected);
    }
    Ok(class)
}

/// The class, if this process has to provision the claim; otherwise the step to take instead.
fn class_to_provision<'a>(
    view: &ProvisionView<'a>,
    claim: &PersistentVolumeClaim,
    now: Now,
) -> Result<&'a StorageClass, ProvisionStep> {
    let class = select_class(view, claim).map_err(ProvisionStep::Idle)?;
    if source::requested_source(claim) == Ok(Some(SourceRef::Foreign)) {
        // With node deployment, only the selected node records the event.
        let elsewhere = view.config.node.as_ref().filter(|node| claim.selected_node() != Some(&node.name));
        return Err(match elsewhere {
            Some(_) => ProvisionStep::Idle(Reason::NotThisNode("a volume populator provisions the claim")),
            None => ProvisionStep::LeaveToPopulator,
        });
    }
    let waited = view.state.competing_since.map(|since| now.monotonic.since(since));
    let binding = view.config.settings.immediate_binding.as_ref();
    match ownership(claim, class, view.config.node.as_ref(), binding, waited) {
        Ownership::Ours => Ok(class),
        Ownership::NotOurs(reason) => Err(ProvisionStep::Idle(Reason::NotThisNode(reason))),
        Ownership::Wait(pause) => {
            Err(ProvisionStep::Wait { reason: Reason::Competing, pause, competing: true })
        }
        Ownership::Compete => Err(ProvisionStep::CompeteForClaim),
    }
}

/// Neither a PersistentVolume nor an intent exists.
fn start(view: &ProvisionView<'_>, now: Now) -> ProvisionStep {
    let Some(claim) = view.claim else { return ProvisionStep::Idle(Reason::NoClaim) };
    let class = match class_to_provision(view, claim, now) {
        Ok(class) => class,
        Err(step) => return step,
    };
    match &view.state.outcome {
        Some(CreateOutcome::Exhausted) if can_reschedule(view.config, claim) => {
            return ProvisionStep::UnselectNode(Unselect::Exhausted);
        }
        Some(CreateOutcome::Infeasible { class_uid, since }) if *class_uid == class.metadata.uid => {
            let waited = now.monotonic.since(*since);
            let left = view.config.settings.worker_options.retry_max.checked_sub(waited);
            if let Some(pause) = left.filter(|left| !left.is_zero()) {
                return ProvisionStep::Wait { reason: Reason::Infeasible, pause, competing: false };
            }
        }
        _ => {}
    }
    let names_snapshot = matches!(source::requested_source(claim), Ok(Some(SourceRef::Snapshot(_))));
    let fetched = match &view.state.fetched {
        Some(fetched) => Arc::clone(fetched),
        None if names_snapshot || attributes_class(claim).is_some() => return ProvisionStep::FetchSources,
        None => Arc::default(),
    };
    prepare_intent(view, claim, class, &fetched, now).unwrap_or_else(|refusal| match refusal {
        Refusal::Topology(error) if error.needs_rescheduling() => {
            ProvisionStep::UnselectNode(Unselect::Topology(error))
        }
        refusal => ProvisionStep::Refuse(refusal),
    })
}

/// The VolumeAttributesClass that a claim names.
pub(crate) fn attributes_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.volume_attributes_class_name.as_deref().filter(|name| !name.is_empty())
}

fn prepare_intent(
    view: &ProvisionView<'_>,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    fetched: &Fetched,
    now: Now,
) -> Result<ProvisionStep, Refusal> {
    let config = view.config;
    if claim.spec.selector.is_some() {
        return Err(Refusal::Selector);
    }
    let provisioned_by = class.provisioner.as_str();
    let class = &*migration::class_for_driver(class, &config.driver)?;
    let source = source::resolve(&SourceView {
        claim,
        class,
        snapshot: fetched.snapshot.as_ref(),
        content: fetched.content.as_ref(),
        source_claim: view.source_claim,
        source_volume: view.source_volume,
        driver: &config.driver,
        capabilities: &config.capabilities,
        prevent_mode_conversion: config.settings.prevent_volume_mode_conversion,
    })?;
    let attributes = match (&fetched.attributes, attributes_class(claim)) {
        (AttributesClass::Found(class), _) if class.driver_name != config.driver => {
            return Err(Refusal::AttributesClassOfOtherDriver {
                name: class.metadata.name.clone(),
                driver: class.driver_name.clone(),
                expected: config.driver.clone(),
            });
        }
        (AttributesClass::Found(_), _) if !config.capabilities.modify_volume => {
            return Err(Refusal::CannotModify);
        }
        (AttributesClass::Found(class), _) => Some(&**class),
        (AttributesClass::Missing, name) => {
            return Err(Refusal::NoAttributesClass(name.unwrap_or_default().to_owned()));
        }
        (AttributesClass::None, _) => None,
    };
    let topology = topology_requirement(view, claim, class)?;
    let content = match &source {
        Source::None | Source::Foreign => None,
        Source::Snapshot { handle, .. } => Some(ContentSource::Snapshot(handle.clone())),
        Source::Volume { handle, .. } => Some(ContentSource::Volume(handle.clone())),
    };
    let protects = content.is_some() && !view.state.source_protected;
    let request = CreateRequest {
        volume: view.volume,
        config,
        claim,
        class,
        provisioned_by,
        source: content,
        topology,
        attributes,
    };
    let intent = request::build_intent(request, now.wall)?;
    // Last, so that no source is protected for a claim that cannot be provisioned.
    Ok(if protects {
        ProvisionStep::ProtectSource(source)
    } else {
        ProvisionStep::WriteIntent(Box::new(intent))
    })
}

/// The topology requirement for CreateVolume. `None`: none is sent.
fn topology_requirement(
    view: &ProvisionView<'_>,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let (config, nodes) = (view.config, view.nodes);
    if !config.capabilities.topology {
        return Ok(None);
    }
    let (place, keys);
    let selected = match claim.selected_node() {
        None => {
            keys = None;
            None
        }
        Some(node) => {
            let csi_node = nodes.csi_node(node);
            let labels = nodes.node(node);
            let labels = labels.as_ref().map(|node| &node.metadata.labels);
            place = topology::node_segments(node, &config.driver, csi_node.as_deref(), labels)?;
            keys = csi_node.map(|csi_node| topology::topology_keys(&csi_node, &config.driver).to_vec());
            Some(SelectedNode { node, segments: &place })
        }
    };
    let request = topology::RequirementInputs {
        claim: &claim.metadata.name,
        allowed: &class.allowed_topologies,
        selected,
        strict: config.settings.strict_topology,
        immediate: config.settings.immediate_topology,
    };
    topology::requirement(&request, || {
        let keys = keys.unwrap_or_else(|| nodes.keys(&config.driver));
        nodes.topologies(&keys)
    })
}

#[cfg(test)]
mod tests;
