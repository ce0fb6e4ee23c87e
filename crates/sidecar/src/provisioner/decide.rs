//! The rules: from what is seen of a volume, its one next step. No I/O, no clock but the one handed in.
//!
//! Three stages, told apart by what there is. A PersistentVolume: an intent for it is settled, then it is kept or
//! deleted by the rules of [`reclaim`](super::reclaim). An intent and no PersistentVolume: the call is repeated
//! until the driver gives a final answer, and what it made is written down or undone, whatever became of claim,
//! class and node meanwhile. Neither: a claim may call for a volume.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wharf_model::names::annotation;
use wharf_model::topology::{self, Selected, TopologyError, TopologyRequirement};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, SecretRef, StorageClass, Time};

use super::claiming::{Claiming, claiming};
use super::intent::{ContentSource, Intent};
use super::reclaim::{self, ReclaimStep, ReclaimView};
use super::request::{self, Ask, RequestError};
use super::source::{self, Named, Source, SourceError, SourceView};
use super::view::{Answer, Attributes, Looked, Made, Memory, View};
use super::volume::{self, Flaw};

/// An intent whose claim is gone and that is older than this comes from a time when nobody of ours ran: somebody
/// may have kept the volume on purpose, so it is not deleted.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Nothing, until something changes.
    Rest(Reason),
    /// Nothing is left to remember.
    Forget,
    /// Nothing, for this long. With `competing` the time counts in the competition between nodes.
    Wait { reason: Reason, pause: Duration, competing: bool },
    /// Tell that somebody else sees to the claim.
    LeaveToPopulator,
    /// Compete with other nodes for the claim.
    Bid,
    /// Read from the server what no store holds.
    Look,
    /// Keep the source of the content from being deleted.
    Protect(Source),
    /// Tell why there is no volume, and try again later. The driver was not asked.
    Refuse(Refusal),
    /// Tell the same, and let the scheduler choose another node.
    Unselect(Unselect),
    /// Write down what the driver will be asked.
    Write(Box<Intent>),
    /// Ask the driver.
    Create(Arc<Intent>),
    /// Write the PersistentVolume. `kept` is set where it stays although its class said otherwise.
    Save { intent: Arc<Intent>, object: Value, kept: bool },
    /// Delete what the driver made. `beside` is another's PersistentVolume of the same name.
    Undo { intent: Arc<Intent>, handle: String, flaw: Flaw, beside: Option<String> },
    /// There is no volume: forget the intent. With `retry`, begin again after the backoff.
    GiveUp { intent: Arc<Intent>, retry: bool },
    /// The PersistentVolume is there: forget the intent.
    Settle { intent: Arc<Intent>, held_by: Option<String> },
    /// The volume's own life.
    Reclaim(ReclaimStep),
}

/// Why nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    NoClaim,
    NotOfThisDriver,
    Bound,
    Deleting,
    NoClass(String),
    ClassOfAnother { class: String, provisioner: String },
    NoNodeSelected,
    OfAnotherNode(&'static str),
    Competing,
    Infeasible,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClaim => f.write_str("no claim asks for this volume"),
            Self::NotOfThisDriver => f.write_str("the claim is for another provisioner"),
            Self::Bound => f.write_str("the claim has a volume"),
            Self::Deleting => f.write_str("the claim is being deleted"),
            Self::NoClass(class) => write!(f, "StorageClass {class:?} does not exist"),
            Self::ClassOfAnother { class, provisioner } => {
                write!(f, "StorageClass {class:?} is now of provisioner {provisioner:?}")
            }
            Self::NoNodeSelected => f.write_str("no pod that uses the claim has a node yet"),
            Self::OfAnotherNode(why) => f.write_str(why),
            Self::Competing => f.write_str("waiting before competing with other nodes for the claim"),
            Self::Infeasible => f.write_str(
                "the driver cannot make such a volume; retries are delayed until the class changes",
            ),
        }
    }
}

/// Why there is no volume, before the driver is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("claim Selector is not supported")]
    Selector,
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("error generating accessibility requirements: {0}")]
    Topology(#[from] TopologyError),
    #[error("VolumeAttributesClass {0} does not exist")]
    NoAttributesClass(String),
    #[error("VolumeAttributesClass {name} is of driver {driver}, not of {own}")]
    AttributesOfAnother { name: String, driver: String, own: String },
    #[error("the driver cannot apply a VolumeAttributesClass: it does not report MODIFY_VOLUME")]
    CannotModify,
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    NameTaken(#[from] Flaw),
}

/// Why the scheduler has to choose again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unselect {
    /// The driver has said so, and that was told already.
    #[error("there is no room where the selected node is")]
    Exhausted,
    #[error("error generating accessibility requirements: {0}")]
    Topology(TopologyError),
}

/// The next step of a volume.
pub(crate) fn decide(view: &View<'_>, now: Time) -> Step {
    match (view.present, view.intent) {
        (Some(present), Some(intent)) => settle(view, present, intent),
        (Some(present), None) => keep(view, present, now),
        (None, Some(intent)) => finish(view, intent, now),
        (None, None) => match provision(view, now) {
            // What is remembered of a claim that is no more, or no longer ours, is of no use.
            Step::Rest(_) if *view.memory != Memory::default() => Step::Forget,
            step => step,
        },
    }
}

/// The secret for making the volume and for deleting what was made.
pub(crate) fn secret(intent: &Intent) -> Option<SecretRef> {
    let (namespace, name) = intent.request.secret.clone()?;
    Some(SecretRef { name, namespace })
}

/// A volume that is there: its own life. A claim that would get the same name and is not its claim has to be told.
fn keep(view: &View<'_>, present: &PersistentVolume, now: Time) -> Step {
    let step = reclaim::decide(&ReclaimView {
        volume: present,
        class: view.present_class,
        driver: &view.own.driver,
        attached: view.attached,
        siblings: view.siblings,
        own: view.own.node.as_ref(),
        memory: &view.memory.reclaim,
    });
    let waits = |claim: &&PersistentVolumeClaim| {
        !present.is_bound_to(&claim.metadata) && ours(view, claim, now).is_ok()
    };
    match (step, view.claim.filter(waits)) {
        (ReclaimStep::Nothing(_), Some(_)) => {
            Step::Refuse(Flaw::NameTaken { name: view.volume.to_owned() }.into())
        }
        (step, _) => Step::Reclaim(step),
    }
}

/// There is a volume of the intent's name. If it is not the intent's, what the driver made for us is in nobody's
/// hands: it is found by asking again, and deleted.
fn settle(view: &View<'_>, present: &PersistentVolume, intent: &Arc<Intent>) -> Step {
    let made = view.memory.made();
    if volume::is_the_one(present, intent, &view.own.driver, made.map(|made| &**made)) {
        return Step::Settle { intent: Arc::clone(intent), held_by: None };
    }
    match (&view.memory.answer, made) {
        (None, _) if !view.memory.uncalled => Step::Create(Arc::clone(intent)),
        (_, Some(made)) => {
            let flaw = Flaw::NameTaken { name: view.volume.to_owned() };
            undo(view, intent, made, flaw, Some(present.metadata.uid.clone()))
        }
        _ => Step::GiveUp { intent: Arc::clone(intent), retry: false },
    }
}

/// There is an intent and no volume: the driver has to be asked, and its answer carried out.
fn finish(view: &View<'_>, intent: &Arc<Intent>, now: Time) -> Step {
    let give_up = |retry| Step::GiveUp { intent: Arc::clone(intent), retry };
    let claim = view.claim;
    match &view.memory.answer {
        // Nobody wants it, and nobody was asked for it.
        None if view.memory.uncalled && claim.is_none() => give_up(false),
        None => Step::Create(Arc::clone(intent)),
        Some(Answer::Made(made)) => match volume::flaw(intent, made).or(unsaved(view.memory)) {
            Some(flaw) => undo(view, intent, made, flaw, None),
            None => {
                let kept = claim.is_none() && now > Time(intent.written).plus(STALE);
                let object = volume::complete(intent, made, view.own, kept);
                Step::Save { intent: Arc::clone(intent), object, kept }
            }
        },
        Some(Answer::Refused | Answer::Undone) => give_up(claim.is_some()),
        Some(Answer::Exhausted) => give_up(claim.is_some_and(|claim| !reschedules(view, claim))),
        Some(Answer::Infeasible { .. }) => give_up(false),
    }
}

/// What the server said to a volume that it will never take.
fn unsaved(memory: &Memory) -> Option<Flaw> {
    memory.unsaved.clone().map(Flaw::Unsaved)
}

/// What was made is deleted, unless a volume stands for it: then it is in somebody's hands.
fn undo(view: &View<'_>, intent: &Arc<Intent>, made: &Made, flaw: Flaw, beside: Option<String>) -> Step {
    match view.holder {
        Some(holder) => Step::Settle { intent: Arc::clone(intent), held_by: Some(holder.to_owned()) },
        None => Step::Undo { intent: Arc::clone(intent), handle: made.handle.clone(), flaw, beside },
    }
}

/// Whether another node may help.
fn reschedules(view: &View<'_>, claim: &PersistentVolumeClaim) -> bool {
    view.own.can.topology && claim.selected_node().is_some()
}

/// Whether a volume is to be made for the claim; if so, of which class.
fn selects<'a>(view: &View<'a>, claim: &PersistentVolumeClaim) -> Result<&'a StorageClass, Reason> {
    let driver = view.own.driver.as_str();
    let migrated = claim.metadata.annotation(annotation::MIGRATED_TO);
    if claim.provisioner() != Some(driver) && migrated != Some(driver) {
        return Err(Reason::NotOfThisDriver);
    }
    if !claim.spec.volume_name.is_empty() {
        return Err(Reason::Bound);
    }
    if claim.metadata.is_deleting() {
        return Err(Reason::Deleting);
    }
    let name = || claim.class().unwrap_or_default().to_owned();
    let class = view.class.ok_or_else(|| Reason::NoClass(name()))?;
    if class.provisioner != driver {
        return Err(Reason::ClassOfAnother { class: name(), provisioner: class.provisioner.clone() });
    }
    if class.waits_for_first_consumer() && claim.selected_node().is_none() {
        return Err(Reason::NoNodeSelected);
    }
    Ok(class)
}

/// Whether it is for us to make a volume for the claim; if so, of which class. If not, what to do instead.
fn ours<'a>(view: &View<'a>, claim: &PersistentVolumeClaim, now: Time) -> Result<&'a StorageClass, Step> {
    let class = selects(view, claim).map_err(Step::Rest)?;
    if source::wanted(claim) == Ok(Some(Named::Foreign)) {
        // Of many nodes the chosen one tells.
        let elsewhere = view.own.node.as_ref().filter(|node| claim.selected_node() != Some(&node.name));
        return Err(match elsewhere {
            Some(_) => Step::Rest(Reason::OfAnotherNode("a populator sees to it")),
            None => Step::LeaveToPopulator,
        });
    }
    let waited = view.memory.waiting_since.map(|since| elapsed(since, now));
    let binding = view.own.settings.immediate_binding.as_ref();
    match claiming(claim, class, view.own.node.as_ref(), binding, waited) {
        Claiming::Ours => Ok(class),
        Claiming::NotOurs(why) => Err(Step::Rest(Reason::OfAnotherNode(why))),
        Claiming::Wait(pause) => Err(Step::Wait { reason: Reason::Competing, pause, competing: true }),
        Claiming::Bid => Err(Step::Bid),
    }
}

/// There is neither volume nor intent.
fn provision(view: &View<'_>, now: Time) -> Step {
    let Some(claim) = view.claim else { return Step::Rest(Reason::NoClaim) };
    let class = match ours(view, claim, now) {
        Ok(class) => class,
        Err(step) => return step,
    };
    match &view.memory.answer {
        Some(Answer::Exhausted) if reschedules(view, claim) => return Step::Unselect(Unselect::Exhausted),
        Some(Answer::Infeasible { class_uid, since }) if *class_uid == class.metadata.uid => {
            let until = since.plus(view.own.settings.pace.retry_max);
            if now < until {
                let pause = elapsed(now, until);
                return Step::Wait { reason: Reason::Infeasible, pause, competing: false };
            }
        }
        _ => {}
    }
    let names_snapshot = matches!(source::wanted(claim), Ok(Some(Named::Snapshot(_))));
    let looked = match &view.memory.looked {
        Some(looked) => Arc::clone(looked),
        None if names_snapshot || attributes_class(claim).is_some() => return Step::Look,
        None => Arc::default(),
    };
    prepare(view, claim, class, &looked, now).unwrap_or_else(|refusal| match refusal {
        Refusal::Topology(error) if error.reschedules() => Step::Unselect(Unselect::Topology(error)),
        refusal => Step::Refuse(refusal),
    })
}

/// The mutable class that a claim names.
pub(crate) fn attributes_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.volume_attributes_class_name.as_deref().filter(|name| !name.is_empty())
}

fn prepare(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    looked: &Looked,
    now: Time,
) -> Result<Step, Refusal> {
    let own = view.own;
    if claim.spec.selector.is_some() {
        return Err(Refusal::Selector);
    }
    let source = source::resolve(&SourceView {
        claim,
        class,
        snapshot: looked.snapshot.as_ref(),
        content: looked.content.as_ref(),
        source_claim: view.source_claim,
        source_volume: view.source_volume,
        driver: &own.driver,
        can: &own.can,
        prevent_mode_conversion: own.settings.prevent_volume_mode_conversion,
    })?;
    let attributes = match (&looked.attributes, attributes_class(claim)) {
        (Attributes::Found(class), _) if class.driver_name != own.driver => {
            return Err(Refusal::AttributesOfAnother {
                name: class.metadata.name.clone(),
                driver: class.driver_name.clone(),
                own: own.driver.clone(),
            });
        }
        (Attributes::Found(_), _) if !own.can.modify_volume => return Err(Refusal::CannotModify),
        (Attributes::Found(class), _) => Some(&**class),
        (Attributes::Missing, name) => {
            return Err(Refusal::NoAttributesClass(name.unwrap_or_default().to_owned()));
        }
        (Attributes::None, _) => None,
    };
    let places = places(view, claim, class)?;
    let content = match &source {
        Source::None | Source::Foreign => None,
        Source::Snapshot { handle, .. } => Some(ContentSource::Snapshot(handle.clone())),
        Source::Volume { handle, .. } => Some(ContentSource::Volume(handle.clone())),
    };
    let protects = content.is_some() && !view.memory.protected;
    let ask = Ask { volume: view.volume, own, claim, class, source: content, places, attributes };
    let intent = request::intent(ask, now)?;
    // Last, so that nothing is protected for a claim that cannot be met.
    Ok(if protects { Step::Protect(source) } else { Step::Write(Box::new(intent)) })
}

/// Where the volume is to be.
fn places(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let (own, nodes) = (view.own, view.nodes);
    if !own.can.topology {
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
            place = topology::place_of(node, &own.driver, csi_node.as_deref(), labels)?;
            keys = csi_node.map(|csi_node| topology::keys(&csi_node, &own.driver).to_vec());
            Some(Selected { node, place: &place })
        }
    };
    let ask = topology::Ask {
        claim: &claim.metadata.name,
        allowed: &class.allowed_topologies,
        selected,
        strict: own.settings.strict_topology,
        immediate: own.settings.immediate_topology,
    };
    topology::requirement(&ask, || {
        let keys = keys.unwrap_or_else(|| nodes.keys(&own.driver));
        nodes.places(&keys)
    })
}

fn elapsed(from: Time, to: Time) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0))
}

#[cfg(test)]
mod tests;
