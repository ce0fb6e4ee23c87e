//! Does the one step that was decided, and puts what came of it where the next view sees it: writes in the stores, by
//! way of the server's answers, and the answers to questions in [`Live`](super::view::Live).

use wharf_cluster::work::Outcome;
use wharf_cluster::{ApiError, EventType};
use wharf_model::volume::VolumePhase;
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim};

use super::Binder;
use super::decide::{About, Rest, Step, Told};
use super::offers::Held;
use super::view::{Found, Live, View};
use super::write::{Part, Write, write};
use wharf_cluster::Patch;

/// So often in a row an object may turn out to be another than we saw, before that counts as a failure.
const STALE: u32 = 10;

/// What is held from one step to the next, and dropped when the subject is left.
pub(super) struct Hand {
    /// What the server was asked.
    pub(super) live: Live,
    /// The volume that is about to be the claim's.
    pub(super) held: Held,
    /// How often an object was not as we saw it.
    stale: u32,
}

impl Hand {
    pub(super) fn new(held: Held) -> Self {
        Self { live: Live::default(), held, stale: 0 }
    }
}

/// How to go on.
pub(super) enum Then {
    /// With another look.
    Again,
    /// Not now.
    End(Outcome),
}

impl Binder {
    /// Does a step for a claim and its volumes.
    pub(super) async fn act(&self, claim: &Key, view: &View, step: Step, hand: &mut Hand) -> Then {
        let asked = match &step {
            Step::Rest(rest) => return self.rest(claim, view, rest),
            Step::AskClaim => {
                let found = self.ask::<PersistentVolumeClaim>(claim).await;
                found.map(|found| hand.live.claim = Some(found))
            }
            Step::AskVolume { name } => {
                let found = self.ask::<PersistentVolume>(&Key::cluster(name)).await;
                found.map(|found| hand.live.volume = Some((name.clone(), found)))
            }
            Step::AskNode { name } => {
                let found = self.ask::<Node>(&Key::cluster(name)).await;
                found.map(|found| hand.live.node = Some((name.clone(), found)))
            }
            _ => match write(&step, view) {
                Some(write) => return self.write(claim, view, &step, write, hand).await,
                // What it is about is no longer seen.
                None => return Then::End(Outcome::Retry),
            },
        };
        match asked {
            Ok(()) => Then::Again,
            Err(error) => {
                tracing::warn!(%claim, %error, "cannot ask: nothing is concluded");
                Then::End(Outcome::Retry)
            }
        }
    }

    fn rest(&self, claim: &Key, view: &View, Rest { told, problem }: &Rest) -> Then {
        for told in told {
            self.tell(view, told);
        }
        match problem {
            None => Then::End(Outcome::Done),
            Some(problem) => {
                tracing::warn!(%claim, %problem, "cannot bind");
                Then::End(Outcome::Retry)
            }
        }
    }

    pub(super) fn tell(&self, view: &View, Told { about, kind, reason, note }: &Told) {
        match about {
            About::Claim => {
                if let Some(claim) = &view.claim {
                    self.context.events.tell(&**claim, *kind, reason, note);
                }
            }
            About::Volume(name) => {
                if let Some(volume) = view.volume(name) {
                    self.context.events.tell(volume, *kind, reason, note);
                }
            }
        }
    }

    async fn ask<K: Kind>(&self, key: &Key) -> Result<Found, ApiError> {
        let found = self.context.cluster.get::<K>(key).await?;
        Ok(found.map_or(Found::Gone, |object| Found::There(object.meta().uid.clone())))
    }

    async fn write(&self, claim: &Key, view: &View, step: &Step, write: Write, hand: &mut Hand) -> Then {
        let then = match write {
            Write::Claim(part, patch) => {
                self.send::<PersistentVolumeClaim>(claim, part, patch, &mut hand.stale).await
            }
            Write::Volume(name, part, patch) => {
                let key = Key::cluster(&name);
                let sent = self.send::<PersistentVolume>(&key, part, patch, &mut hand.stale).await;
                // Offers are told by the same change, only later: nobody is to be offered what is bound, or gone.
                let now = self.volumes.get(&key).filter(|_| !matches!(sent, Ok(Sent::Gone)));
                self.offers.update(&name, now.as_deref());
                sent
            }
        };
        match then {
            Ok(Sent::Yes) => {
                if let Step::VolumePhase { told: Some(told), .. }
                | Step::ClaimPhase { told: Some(told), .. } = step
                {
                    self.tell(view, told);
                }
                say(claim, step);
                Then::Again
            }
            Ok(Sent::Stale) => Then::Again,
            // By the next look the watch has told us.
            Ok(Sent::Gone) => Then::End(Outcome::Retry),
            Err(error) => {
                self.failed(claim, view, step, &error);
                Then::End(Outcome::Retry)
            }
        }
    }

    fn failed(&self, claim: &Key, view: &View, step: &Step, error: &ApiError) {
        tracing::warn!(%claim, %error, ?step, "cannot write");
        if let Step::HandOver { .. } = step {
            let told = Told {
                about: About::Claim,
                kind: EventType::Warning,
                reason: wharf_model::names::reason::PROVISIONING_FAILED,
                note: format!("Error saving claim: {error}"),
            };
            self.tell(view, &told);
        }
    }

    /// Does a step for a volume that names no claim.
    pub(super) async fn act_on_volume(&self, view: &View, step: Step, stale: &mut u32) -> Then {
        let Some(Write::Volume(name, part, patch)) = write(&step, view) else {
            return Then::End(Outcome::Done);
        };
        match self.send::<PersistentVolume>(&Key::cluster(&name), part, patch, stale).await {
            Ok(Sent::Yes | Sent::Stale) => Then::Again,
            Ok(Sent::Gone) => Then::End(Outcome::Done),
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot write");
                Then::End(Outcome::Retry)
            }
        }
    }

    async fn send<K: Kind>(
        &self,
        key: &Key,
        part: Part,
        patch: Patch,
        stale: &mut u32,
    ) -> Result<Sent, ApiError> {
        let cluster = &self.context.cluster;
        match cluster.patch(&K::API, key, part.subresource(), patch).await {
            Ok(_) => Ok(Sent::Yes),
            Err(ApiError::NotFound(_)) => Ok(Sent::Gone),
            // Our store is behind: what we read now enters it.
            Err(ApiError::Conflict(_) | ApiError::Invalid(_)) if *stale < STALE => {
                *stale += 1;
                Ok(if cluster.get::<K>(key).await?.is_some() { Sent::Stale } else { Sent::Gone })
            }
            Err(error) => Err(error),
        }
    }
}

/// What came of a write.
enum Sent {
    Yes,
    /// The object is another than we saw; by now the store has it as it is.
    Stale,
    /// There is no such object.
    Gone,
}

fn say(claim: &Key, step: &Step) {
    match step {
        Step::ClaimBound { volume } => tracing::info!(%claim, volume, "bound"),
        Step::ClaimPhase { phase, .. } => tracing::info!(%claim, %phase, "claim has no volume"),
        Step::VolumePhase {
            volume, phase: phase @ (VolumePhase::Released | VolumePhase::Failed), ..
        } => {
            tracing::info!(%claim, volume, %phase, "volume's claim is gone");
        }
        Step::Unbind { volume } => tracing::info!(%claim, volume, "unbound: the claim has another volume"),
        Step::AssignClass { class } => tracing::info!(%claim, class, "given the default class"),
        Step::HandOver { provisioner } => tracing::info!(%claim, provisioner, "handed to the provisioner"),
        Step::ClearSelectedNode => {
            tracing::info!(%claim, "the node chosen for it is gone: to be chosen again")
        }
        _ => {}
    }
}
