//! Does the one step that was decided, and puts what came of it where the next view sees it: in the stores, by way
//! of the server's answers, and in memory.
//!
//! If we die here: before a request nothing has happened; after it the objects say what has. Nothing that was meant
//! is known to us alone.

use serde_json::json;
use wharf_cluster::work::Outcome;
use wharf_cluster::{ApiError, EventType, Preconditions, Priority, now};
use wharf_model::names::reason;
use wharf_model::whole::Node;
use wharf_model::{Key, Kind, VolumeAttachment};

use super::decide::{News, Proof, Step};
use super::memory::Unheard;
use super::view::View;
use super::wake::Subject;
use super::{AttachDetach, report, tell};

/// How to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// With another look.
    Again,
    /// Not now.
    End(Outcome),
}

/// Why a volume was not detached.
#[derive(Debug, thiserror::Error)]
enum DetachError {
    #[error("cannot ask whether node {node} uses it: {source}")]
    Node { node: String, source: ApiError },
    #[error("cannot delete VolumeAttachment {attachment}: {source}")]
    Delete { attachment: String, source: ApiError },
}

/// Why a volume was not asked for.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("{0}")]
    Create(#[from] ApiError),
    #[error(
        "VolumeAttachment {attachment} is of driver {driver} and node {node}: delete it, its name is that of another"
    )]
    Taken { attachment: String, driver: String, node: String },
}

impl AttachDetach {
    /// Does a step for a volume.
    pub(super) async fn act(&self, view: &View<'_>, step: Step) -> Then {
        match step {
            Step::Rest { reports, again } => {
                for node in reports {
                    self.queue.add(Subject::Node(node), Priority::High);
                }
                Then::End(again.map_or(Outcome::Done, Outcome::After))
            }
            Step::Attach { node, volume } => {
                let done = self.attach(view, &node, &volume).await;
                let lost = matches!(&done, Err(AttachError::Create(error)) if may_arrive(error));
                self.asked(view, &node, lost.then_some(Unheard { since: now(), made: true }));
                let error = done.as_ref().err().map(ToString::to_string);
                if let Some(error) = &error {
                    self.tell_pods(view, &node, &tell::not_asked(&volume, error));
                }
                self.tried(view, &node, "attach", error)
            }
            Step::Detach { node, attachment, uid, proof } => {
                let done = self.detach(view, &node, attachment, uid, proof).await;
                let lost = matches!(&done, Err(DetachError::Delete { source, .. }) if may_arrive(source));
                self.asked(view, &node, lost.then_some(Unheard { since: now(), made: false }));
                self.tried(view, &node, "detach", done.err().map(|error| error.to_string()))
            }
            Step::Announce { node } => {
                self.memories.change(&view.name, &node, |memory| memory.announced = true);
                Then::Again
            }
            Step::Ask { node } => {
                let asked = self.ask(view, &node).await;
                self.tried(view, &node, "ask", asked.err().map(|error| error.to_string()))
            }
            Step::Tell { node, news } => {
                self.tell(view, &node, news);
                Then::Again
            }
        }
    }

    /// An attempt has ended, perhaps with a request to which there was no answer.
    fn asked(&self, view: &View<'_>, node: &str, unheard: Option<Unheard>) {
        self.memories.change(&view.name, node, |memory| memory.has_asked(unheard));
    }

    /// What came of a request that cannot arrive any more: what we read enters the store.
    async fn ask(&self, view: &View<'_>, node: &str) -> Result<(), ApiError> {
        let key = Key::cluster(view.name.attachment(node));
        let found = self.context.cluster.get::<VolumeAttachment>(&key).await?;
        tracing::info!(volume = %view.name, node, there = found.is_some(), "asked what came of a request");
        self.memories.change(&view.name, node, |memory| memory.unheard = None);
        Ok(())
    }

    /// An attempt that failed makes its own node wait, and no other.
    fn tried(&self, view: &View<'_>, node: &str, what: &'static str, error: Option<String>) -> Then {
        if let Some(error) = &error {
            tracing::warn!(volume = %view.name, node, error, "cannot {what}");
        }
        self.memories.change(&view.name, node, |memory| match error {
            Some(_) => memory.has_failed(self.settings.pace.backoff(), now()),
            None => memory.failure = None,
        });
        Then::Again
    }

    /// Made if it is absent: the rest is the attacher's, and the watch tells.
    async fn attach(&self, view: &View<'_>, node: &str, volume: &str) -> Result<(), AttachError> {
        let (name, driver) = (view.name.attachment(node), view.name.driver.as_str());
        let api = VolumeAttachment::API;
        let body = json!({
            "apiVersion": api.api_version(),
            "kind": api.kind,
            "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
        });
        let cluster = &self.context.cluster;
        match cluster.create(&api, None, &body).await {
            Ok(_) => {
                tracing::info!(volume = %view.name, node, attachment = name, "asked for");
                Ok(())
            }
            // Our store is behind: what we read now enters it.
            Err(ApiError::AlreadyExists(refusal)) => {
                let found = cluster.get::<VolumeAttachment>(&Key::cluster(name.as_str())).await?;
                let Some(found) = found else { return Err(ApiError::AlreadyExists(refusal).into()) };
                let of =
                    |found: &VolumeAttachment| found.spec.attacher == driver && found.spec.node_name == node;
                if of(&found) {
                    return Ok(());
                }
                let (driver, node) = (found.spec.attacher, found.spec.node_name);
                Err(AttachError::Taken { attachment: name, driver, node })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the node uses the volume is asked of the server, after it was told that the volume
    /// leaves. Whatever the answer, the store has it, and the next look with it.
    async fn detach(
        &self,
        view: &View<'_>,
        node: &str,
        attachment: String,
        uid: String,
        proof: Proof,
    ) -> Result<(), DetachError> {
        let cluster = &self.context.cluster;
        let volume = view.name.to_string();
        match proof {
            Proof::NotInUse => {
                let asked = cluster.get::<Node>(&Key::cluster(node)).await;
                let found = asked.map_err(|source| DetachError::Node { node: node.to_owned(), source })?;
                let status = found.map(|node| node.status).unwrap_or_default();
                let in_use = status.volumes_in_use.contains(&volume);
                if in_use || status.volumes_attached.iter().any(|attached| attached.name == volume) {
                    tracing::info!(volume, node, in_use, "not detached: the node has it again");
                    return Ok(());
                }
            }
            Proof::Forced(why) => {
                let why = why.as_str();
                tracing::warn!(volume, node, why, "detached by force: the node may still use it");
            }
        }
        let key = Key::cluster(attachment.as_str());
        let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
        match cluster.delete(&VolumeAttachment::API, &key, preconditions).await {
            Ok(()) => {
                tracing::info!(volume, node, attachment, "to be detached");
                if let Proof::Forced(why) = proof {
                    self.metrics.forced(why);
                }
                Ok(())
            }
            Err(ApiError::NotFound(_)) => Ok(()),
            Err(source @ (ApiError::Conflict(_) | ApiError::Invalid(_))) => {
                // It should be another of its name, which now enters the store.
                match cluster.get::<VolumeAttachment>(&key).await {
                    Ok(found) if found.as_ref().is_none_or(|found| found.metadata.uid != uid) => Ok(()),
                    Ok(_) => Err(DetachError::Delete { attachment, source }),
                    Err(source) => Err(DetachError::Delete { attachment, source }),
                }
            }
            Err(source) => Err(DetachError::Delete { attachment, source }),
        }
    }

    fn tell(&self, view: &View<'_>, node: &str, news: News) {
        if let Some(place) = view.places.get(node) {
            for pod in &place.pods {
                let note = tell::news(view, node, pod, &news);
                tracing::warn!(volume = %view.name, node, pod = %pod.metadata.key(), "{note}");
                self.context.events.tell(&**pod, EventType::Warning, reason::FAILED_ATTACH_VOLUME, note);
            }
        }
        self.memories.change(&view.name, node, |memory| match news {
            News::MultiAttach { .. } => memory.told_multi_attach = true,
            News::Failed { message, at } => memory.told_error = Some((message, at)),
            News::Silence { .. } => memory.asked_since = Some(now()),
        });
    }

    fn tell_pods(&self, view: &View<'_>, node: &str, note: &str) {
        for pod in view.places.get(node).iter().flat_map(|place| &place.pods) {
            self.context.events.tell(&**pod, EventType::Warning, reason::FAILED_ATTACH_VOLUME, note);
        }
    }

    /// Tells a node what is attached to it.
    pub(super) async fn report(&self, name: &str) -> Then {
        let Some(node) = self.nodes.get(&Key::cluster(name)) else { return Then::End(Outcome::Done) };
        let (views, reports) = self.reports(&node);
        let Some(list) = report::list(&node.status.volumes_attached, &reports) else {
            return Then::End(Outcome::Done);
        };
        let (cluster, key) = (&self.context.cluster, Key::cluster(name));
        let patch = report::patch(&node.metadata, &list.volumes);
        match cluster.patch(&Node::API, &key, Some("status"), patch).await {
            Ok(_) => {
                let (added, removed) = (list.added.join(" "), list.removed.join(" "));
                tracing::debug!(node = name, added, removed, "told what is attached");
                let added = views.iter().filter(|view| list.added.contains(&view.name.to_string()));
                for (view, place) in added.filter_map(|view| Some((view, view.places.get(name)?))) {
                    for pod in &place.pods {
                        let note = tell::attached(view.title(place));
                        let (kind, reason) = (EventType::Normal, reason::SUCCESSFUL_ATTACH_VOLUME);
                        self.context.events.tell(&**pod, kind, reason, note);
                    }
                }
                Then::Again
            }
            Err(ApiError::NotFound(_)) => Then::End(Outcome::Done),
            Err(error @ (ApiError::Conflict(_) | ApiError::Invalid(_))) => {
                // It should be another node of this name, which now enters the store.
                match cluster.get::<Node>(&key).await {
                    Ok(Some(found)) if found.metadata.uid != node.metadata.uid => Then::Again,
                    Ok(None) => Then::End(Outcome::Done),
                    Ok(Some(_)) => not_told(name, &error),
                    Err(error) => not_told(name, &error),
                }
            }
            Err(error) => not_told(name, &error),
        }
    }
}

/// Whether a request may have had its effect, or may yet.
fn may_arrive(error: &ApiError) -> bool {
    matches!(error, ApiError::Unavailable(_) | ApiError::Other { .. })
}

/// Nothing was withdrawn and nothing shown: what waits for it goes on waiting.
fn not_told(node: &str, error: &ApiError) -> Then {
    tracing::warn!(node, %error, "cannot tell the node what is attached");
    Then::End(Outcome::Retry)
}
