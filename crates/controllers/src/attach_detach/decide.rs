//! The rules: the one next thing to do for a volume, and what a node is to be told of it.
//!
//! - What leaves goes before what comes. A volume for one node is not asked for on another while a VolumeAttachment
//!   of it is left, in whatever state.
//! - What a pod may use is not detached. What nobody wants is detached when its node does not use it; while a node
//!   that is well says that it does, never.
//! - A node is told that a volume leaves, and only then is the volume's deletion from it asked for: the node either
//!   said before that it uses it, or will not begin to.
//! - A request to which there was no answer may have arrived, or may yet: until it is known what came of it, the volume
//!   may be on the node, and the node is not told that it is.

use std::collections::BTreeSet;
use std::time::Duration;

use wharf_model::Time;

use super::memory::until;
use super::view::{Place, Standing, View};

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing but to look at what these nodes are told. Again after a while, if not something happens before.
    Rest { reports: BTreeSet<String>, again: Option<Duration> },
    /// Ask for the volume on a node, by this PersistentVolume.
    Attach { node: String, volume: String },
    /// Promise that a node is not told of the volume, until its end was asked for. Then look again: who was told a
    /// moment ago has a pod that is seen by now.
    Announce { node: String },
    /// Ask for the end of an attachment.
    Detach { node: String, attachment: String, uid: String, proof: Proof },
    /// Ask the server what came of a request.
    Ask { node: String },
    /// Tell the pods that wait on a node.
    Tell { node: String, news: News },
}

/// Why a volume may be detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The node does not use it. The server is asked once more.
    NotInUse,
    /// The node may use it, and is detached from all the same.
    Forced(Force),
}

/// Why a detach is forced, in the words of upstream's metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Force {
    /// The node is not well, and was given its time.
    Timeout,
    /// An operator says that nothing runs on it.
    OutOfService,
}

impl Force {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

/// What pods are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// The volume is on these nodes.
    MultiAttach { nodes: Vec<String> },
    /// The attacher failed.
    Failed { message: String, at: Option<Time> },
    /// The attacher does not answer.
    Silence { standing: Standing },
}

/// What a node's status is to say of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// That it is attached.
    Show,
    /// Nothing.
    Hide,
    /// What it says already.
    Keep,
}

/// Whether a volume that nobody wants may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// Now.
    Now(Proof),
    /// After this long, if nothing changes.
    After(Duration),
    /// When the node says that it does not use it any more.
    WhenUnused,
}

/// What to do next for a volume.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    let mut again = Soonest::default();
    if view.known {
        let leaving = view.places.iter().filter(|(_, place)| !place.held);
        let mut coming: Vec<_> = view.places.iter().filter(|(_, place)| place.is_wanted()).collect();
        // Who came first gets it.
        coming.sort_by_key(|(_, place)| place.pods.first().map(|pod| pod.metadata.creation_timestamp));
        let detach = leaving.map(|(node, place)| detach(view, node, place, now));
        let attach = coming.into_iter().map(|(node, place)| attach(view, node, place, now));
        let asks = view.places.iter().map(|(node, place)| ask(node, place, now));
        // What came of an earlier request is asked before the next one, whose pauses it would else never get past.
        for next in asks.chain(detach).chain(attach) {
            match next {
                Next::Nothing => {}
                Next::After(wait) => again.add(wait),
                Next::Step(step) => return step,
            }
        }
    }
    let misreported = |node: &&String| match (report(view, node, now), view.places[*node].machine) {
        (_, machine) if !machine.there => false,
        (Report::Show, machine) => !machine.reported,
        (Report::Hide, machine) => machine.reported,
        (Report::Keep, _) => false,
    };
    let reports = view.places.keys().filter(misreported).cloned().collect();
    Step::Rest { reports, again: again.0 }
}

/// What one place calls for.
enum Next {
    Nothing,
    After(Duration),
    Step(Step),
}

#[derive(Default)]
struct Soonest(Option<Duration>);

impl Soonest {
    fn add(&mut self, wait: Duration) {
        self.0 = Some(self.0.map_or(wait, |soonest| soonest.min(wait)));
    }
}

/// What is to leave.
fn detach(view: &View<'_>, node: &str, place: &Place, now: Time) -> Next {
    let Some(attachment) = &place.attachment else { return Next::Nothing };
    if attachment.metadata.is_deleting() {
        return Next::Nothing;
    }
    let proof = match leave(view, place, now) {
        Leave::Now(proof) => proof,
        Leave::After(wait) => return Next::After(wait),
        Leave::WhenUnused => return Next::Nothing,
    };
    if place.machine.reported {
        // First the node is told, see [`report`]; its change brings us back.
        return Next::Nothing;
    }
    if let Some(pause) = place.memory.pause(now) {
        return Next::After(pause);
    }
    let (node, uid) = (node.to_owned(), attachment.metadata.uid.clone());
    if !place.memory.announced {
        return Next::Step(Step::Announce { node });
    }
    Next::Step(Step::Detach { node, attachment: attachment.metadata.name.clone(), uid, proof })
}

/// Whether it may leave: not in use, by force, out of service. A node that is well and uses it is waited for.
pub(super) fn leave(view: &View<'_>, place: &Place, now: Time) -> Leave {
    let (rules, machine) = (view.rules, &place.machine);
    let end = place.memory.unwanted_since.unwrap_or(now).plus(rules.max_wait(&view.name.driver));
    let left = until(end, now);
    let expired = left.is_none() && !rules.disable_force_detach_on_timeout;
    if !machine.in_use {
        let ask = rules.verify_after_timeout || !expired;
        return Leave::Now(if ask { Proof::NotInUse } else { Proof::Forced(Force::Timeout) });
    }
    let believed = !machine.ready || !rules.out_of_service_only_if_not_ready;
    if machine.out_of_service && believed {
        return Leave::Now(Proof::Forced(Force::OutOfService));
    }
    match left {
        _ if machine.ready || rules.disable_force_detach_on_timeout => Leave::WhenUnused,
        Some(left) => Leave::After(left),
        None => Leave::Now(Proof::Forced(Force::Timeout)),
    }
}

/// What is to come.
fn attach(view: &View<'_>, node: &str, place: &Place, now: Time) -> Next {
    let tell = |news| Next::Step(Step::Tell { node: node.to_owned(), news });
    match place.standing() {
        Standing::Attached => Next::Nothing,
        standing @ (Standing::Uncertain | Standing::Going) => {
            let error =
                place.attachment.as_ref().and_then(|attachment| attachment.status.attach_error.as_ref());
            if let Some(error) = error.filter(|_| standing == Standing::Uncertain) {
                let news = (error.message.clone(), error.time);
                if place.memory.told_error.as_ref() == Some(&news) {
                    return Next::Nothing;
                }
                return tell(News::Failed { message: news.0, at: news.1 });
            }
            let asked = place.memory.asked_since.unwrap_or(now);
            match until(asked.plus(view.rules.pace.timeout), now) {
                Some(left) => Next::After(left),
                None => tell(News::Silence { standing }),
            }
        }
        Standing::Absent => {
            let nodes = hindrances(view, node, now);
            if !nodes.is_empty() {
                return blocked(view, node, place, nodes, now);
            }
            if let Some(pause) = place.memory.pause(now) {
                return Next::After(pause);
            }
            match &place.volume {
                Some(volume) => Next::Step(Step::Attach { node: node.to_owned(), volume: volume.clone() }),
                None => Next::Nothing,
            }
        }
    }
}

/// A request without an answer, once it cannot arrive any more. Until then, asking would prove nothing.
fn ask(node: &str, place: &Place, now: Time) -> Next {
    match place.memory.unheard.map(|unheard| unheard.left(now)) {
        None => Next::Nothing,
        Some(Some(left)) => Next::After(left),
        Some(None) => match place.memory.pause(now) {
            Some(pause) => Next::After(pause),
            None => Next::Step(Step::Ask { node: node.to_owned() }),
        },
    }
}

/// Another node is in the way. If pods use the volume there, that is told at once. Else it is on its way, and told
/// only if that takes long (kubernetes#96142).
fn blocked(view: &View<'_>, node: &str, place: &Place, nodes: Vec<String>, now: Time) -> Next {
    if place.memory.told_multi_attach {
        return Next::Nothing;
    }
    let others = || nodes.iter().filter_map(|node| view.places.get(node));
    if !view.rules.uncertain_blocks && others().all(|place| place.standing() != Standing::Attached) {
        // Upstream waits for its own request and says nothing.
        let left = others().filter_map(|place| pending(view, place, now)).max();
        return left.map_or(Next::Nothing, Next::After);
    }
    let used = others().any(|place| place.held);
    let grace = if used { Duration::ZERO } else { view.rules.multi_attach_grace };
    match until(place.memory.blocked_since.unwrap_or(now).plus(grace), now) {
        Some(left) => Next::After(left),
        None => Next::Step(Step::Tell { node: node.to_owned(), news: News::MultiAttach { nodes } }),
    }
}

/// The nodes that a volume must leave before it may come to this one.
pub(super) fn hindrances(view: &View<'_>, node: &str, now: Time) -> Vec<String> {
    if !view.exclusive {
        return Vec::new();
    }
    let hinders = |(other, place): &(&String, &Place)| {
        *other != node
            && match place.standing() {
                Standing::Absent => view.rules.uncertain_blocks && place.memory.unheard.is_some(),
                Standing::Attached => true,
                Standing::Uncertain | Standing::Going => {
                    view.rules.uncertain_blocks || pending(view, place, now).is_some()
                }
            }
    };
    view.places.iter().filter(hinders).map(|(node, _)| node.clone()).collect()
}

/// How long upstream would still wait for the attacher. Once it failed or took too long, upstream goes on as if the
/// volume were not there.
fn pending(view: &View<'_>, place: &Place, now: Time) -> Option<Duration> {
    let status = &place.attachment.as_ref()?.status;
    let failed = match place.standing() {
        Standing::Going => status.detach_error.is_some(),
        Standing::Uncertain => status.attach_error.is_some(),
        Standing::Absent | Standing::Attached => false,
    };
    let since = place.memory.asked_since.or(place.memory.unwanted_since).unwrap_or(now);
    until(since.plus(view.rules.pace.timeout), now).filter(|_| !failed)
}

/// What a node's status is to say of the volume: reported as soon as it is attached, withdrawn before it
/// is detached, and not shown again until it is wanted and attached.
pub(super) fn report(view: &View<'_>, node: &str, now: Time) -> Report {
    let Some(place) = view.places.get(node) else { return Report::Keep };
    match place.standing() {
        Standing::Absent | Standing::Uncertain | Standing::Going => Report::Hide,
        Standing::Attached if place.memory.announced || place.memory.unheard.is_some() => Report::Hide,
        Standing::Attached if place.is_wanted() => Report::Show,
        Standing::Attached if place.held || !view.known => Report::Keep,
        Standing::Attached => match leave(view, place, now) {
            Leave::Now(_) => Report::Hide,
            Leave::After(_) | Leave::WhenUnused => Report::Keep,
        },
    }
}

#[cfg(test)]
mod tests;
