//! Performs the one step that was decided, and records its result where the next view reads it: the API server's
//! responses enter the stores, the rest is kept in `AttachState`.
//!
//! A crash before a request leaves nothing behind; after a request the objects show its effect. No intent exists only
//! in this process.

use serde_json::json;
use wharf_cluster::work::{self, StepOutcome, WriteOutcome};
use wharf_cluster::{ApiError, EventType, Priority, monotonic};
use wharf_model::names::reason;
use wharf_model::{Key, Kind, Node, VolumeAttachment};

use super::decide::{DetachReason, PodEvent, Step};
use super::state::UnconfirmedRequest;
use super::view::View;
use super::wake::WorkItem;
use super::{AttachDetach, messages, report};

/// Why a VolumeAttachment was not deleted.
#[derive(Debug, thiserror::Error)]
enum DetachError {
    #[error("failed to get node {node} to check volumesInUse: {source}")]
    Node { node: String, source: ApiError },
    #[error("failed to delete VolumeAttachment {attachment}: {source}")]
    Delete { attachment: String, source: ApiError },
}

/// Why a VolumeAttachment was not created.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("{0}")]
    Create(#[from] ApiError),
    #[error(
        "VolumeAttachment {attachment} belongs to driver {driver} and node {node}, but has the name of another attachment: \
         delete it"
    )]
    NameConflict { attachment: String, driver: String, node: String },
}

impl AttachDetach {
    /// Performs a step for a volume.
    pub(super) async fn act(&self, view: &View<'_>, step: Step) -> StepOutcome {
        match step {
            Step::Idle { reports, requeue_after } => {
                for node in reports {
                    self.queue.add(WorkItem::Node(node), Priority::High);
                }
                requeue_after.map_or(StepOutcome::DONE, StepOutcome::retry_after)
            }
            Step::Attach { node, volume } => {
                let earlier = self.begin_attempt(view, &node, true);
                let done = self.attach(view, &node, &volume).await;
                let unconfirmed = matches!(&done, Err(AttachError::Create(error)) if may_take_effect(error));
                let unconfirmed =
                    unconfirmed.then_some(UnconfirmedRequest { since: monotonic(), create: true });
                self.end_attempt(view, &node, unconfirmed, earlier);
                let error = done.as_ref().err().map(ToString::to_string);
                if let Some(error) = &error {
                    self.warn_pods(view, &node, &messages::attach_request_failed(&volume, error));
                }
                self.record_attempt(view, &node, "attach volume", error)
            }
            Step::Detach { node, uid, reason, .. } => {
                let earlier = self.begin_attempt(view, &node, false);
                let done = self.detach(view, &node, &uid, reason).await;
                let unconfirmed =
                    matches!(&done, Err(DetachError::Delete { source, .. }) if may_take_effect(source));
                let unconfirmed =
                    unconfirmed.then_some(UnconfirmedRequest { since: monotonic(), create: false });
                self.end_attempt(view, &node, unconfirmed, earlier);
                self.record_attempt(view, &node, "detach volume", done.err().map(|error| error.to_string()))
            }
            Step::Announce { node } => {
                self.states.update(&view.name, &node, |state| state.announced = true);
                StepOutcome::Continue
            }
            Step::CheckAttachment { node } => {
                let result = self.check_attachment(view, &node).await;
                self.record_attempt(
                    view,
                    &node,
                    "check unconfirmed request",
                    result.err().map(|error| error.to_string()),
                )
            }
            Step::RecordEvent { node, event } => {
                self.record_event(view, &node, event);
                StepOutcome::Continue
            }
        }
    }

    /// Records a request before it is sent; returns an earlier one whose outcome is unknown.
    fn begin_attempt(&self, view: &View<'_>, node: &str, create: bool) -> Option<UnconfirmedRequest> {
        let request = UnconfirmedRequest { since: monotonic(), create };
        let mut earlier = None;
        self.states.update(&view.name, node, |state| earlier = state.begin_attempt(request));
        earlier
    }

    /// Records the end of an attempt, perhaps with a request whose outcome is unknown.
    fn end_attempt(
        &self,
        view: &View<'_>,
        node: &str,
        unconfirmed: Option<UnconfirmedRequest>,
        earlier: Option<UnconfirmedRequest>,
    ) {
        self.states.update(&view.name, node, |state| state.end_attempt(unconfirmed, earlier));
    }

    /// Reads the outcome of a request that cannot take effect any more. The read updates the store.
    async fn check_attachment(&self, view: &View<'_>, node: &str) -> Result<(), ApiError> {
        let key = Key::cluster(view.name.attachment_name(node));
        let found = self.context.cluster.get::<VolumeAttachment>(&key).await?;
        tracing::info!(
            driver = view.name.driver,
            volume_handle = view.name.handle,
            node,
            exists = found.is_some(),
            "read outcome of unconfirmed request"
        );
        self.states.update(&view.name, node, |state| state.unconfirmed = None);
        Ok(())
    }

    /// Records the result of an attempt. A failure backs off this node only.
    fn record_attempt(
        &self,
        view: &View<'_>,
        node: &str,
        operation: &'static str,
        error: Option<String>,
    ) -> StepOutcome {
        if let Some(error) = &error {
            tracing::warn!(
                driver = view.name.driver,
                volume_handle = view.name.handle,
                node,
                error,
                "failed to {operation}"
            );
        }
        self.states.update(&view.name, node, |state| match error {
            Some(_) => state.fail_attempt(self.settings.worker_options.backoff(), monotonic()),
            None => state.failure = None,
        });
        StepOutcome::Continue
    }

    /// Creates the VolumeAttachment if it does not exist. The attacher does the rest, and the watch reports it.
    async fn attach(&self, view: &View<'_>, node: &str, volume: &str) -> Result<(), AttachError> {
        let (name, driver) = (view.name.attachment_name(node), view.name.driver.as_str());
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
                tracing::info!(
                    driver = view.name.driver,
                    volume_handle = view.name.handle,
                    node,
                    volume_attachment = name,
                    "created VolumeAttachment"
                );
                Ok(())
            }
            // The store is behind: this read updates it.
            Err(ApiError::AlreadyExists(message)) => {
                let found = cluster.get::<VolumeAttachment>(&Key::cluster(name.as_str())).await?;
                let Some(found) = found else { return Err(ApiError::AlreadyExists(message).into()) };
                let is_same =
                    |found: &VolumeAttachment| found.spec.attacher == driver && found.spec.node_name == node;
                if is_same(&found) {
                    return Ok(());
                }
                let (driver, node) = (found.spec.attacher, found.spec.node_name);
                Err(AttachError::NameConflict { attachment: name, driver, node })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the VolumeAttachment. The node's status no longer lists the volume as attached by now; the API server is
    /// read once more to see whether the node uses it. That read updates the store, and so the next view.
    async fn detach(
        &self,
        view: &View<'_>,
        node: &str,
        uid: &str,
        reason: DetachReason,
    ) -> Result<(), DetachError> {
        let cluster = &self.context.cluster;
        let attachment = view.nodes.get(node).and_then(|node_view| node_view.attachment.as_ref());
        let Some(attachment) = attachment.filter(|attachment| attachment.metadata.uid == uid) else {
            return Ok(());
        };
        let volume = view.name.to_string();
        match reason {
            DetachReason::NotInUse => {
                let result = cluster.get::<Node>(&Key::cluster(node)).await;
                let found = result.map_err(|source| DetachError::Node { node: node.to_owned(), source })?;
                let status = found.map(|node| node.status).unwrap_or_default();
                let in_use = status.volumes_in_use.contains(&volume);
                if in_use || status.volumes_attached.iter().any(|attached| attached.name == volume) {
                    tracing::info!(
                        driver = view.name.driver,
                        volume_handle = view.name.handle,
                        node,
                        in_use,
                        "detach cancelled: the node uses the volume again"
                    );
                    return Ok(());
                }
            }
            DetachReason::Forced(reason) => {
                let reason = reason.as_str();
                tracing::warn!(
                    driver = view.name.driver,
                    volume_handle = view.name.handle,
                    node,
                    reason,
                    "forcing detach: the node may still use the volume"
                );
            }
        }
        match work::write::delete::<VolumeAttachment>(cluster, &attachment.metadata).await {
            WriteOutcome::Written => {
                tracing::info!(
                    driver = view.name.driver,
                    volume_handle = view.name.handle,
                    node,
                    volume_attachment = attachment.metadata.name,
                    "deleted VolumeAttachment"
                );
                if let DetachReason::Forced(reason) = reason {
                    self.metrics.forced(reason);
                }
                Ok(())
            }
            // It is gone, or another one of that name exists: the next view shows it.
            WriteOutcome::NotFound | WriteOutcome::Stale => Ok(()),
            WriteOutcome::Failed(source) => {
                Err(DetachError::Delete { attachment: attachment.metadata.name.clone(), source })
            }
        }
    }

    fn record_event(&self, view: &View<'_>, node: &str, event: PodEvent) {
        if let Some(node_view) = view.nodes.get(node) {
            for pod in &node_view.pods {
                let note = messages::pod_event(view, node, pod, &event);
                tracing::warn!(
                    driver = view.name.driver,
                    volume_handle = view.name.handle,
                    node,
                    pod = %pod.metadata.key(),
                    "{note}"
                );
                self.context.events.record_for(
                    &**pod,
                    EventType::Warning,
                    reason::FAILED_ATTACH_VOLUME,
                    note,
                );
            }
        }
        self.states.update(&view.name, node, |state| match event {
            PodEvent::MultiAttach { .. } => state.multi_attach_reported = true,
            PodEvent::AttachFailed { message, at } => state.reported_error = Some((message, at)),
            PodEvent::Timeout { .. } => state.waiting_since = Some(monotonic()),
        });
    }

    fn warn_pods(&self, view: &View<'_>, node: &str, note: &str) {
        for pod in view.nodes.get(node).iter().flat_map(|node_view| &node_view.pods) {
            self.context.events.record_for(&**pod, EventType::Warning, reason::FAILED_ATTACH_VOLUME, note);
        }
    }

    /// Writes `status.volumesAttached` of a node.
    pub(super) async fn report_attached(&self, name: &str) -> StepOutcome {
        let Some(node) = self.nodes.get(&Key::cluster(name)) else { return StepOutcome::DONE };
        let (views, reports) = self.reports(&node);
        let Some(list) = report::updated_list(&node.status.volumes_attached, &reports) else {
            return StepOutcome::DONE;
        };
        let patch = report::patch(&node.metadata, &list.volumes);
        let outcome =
            work::write::patch::<Node>(&self.context.cluster, &node.metadata, Some("status"), patch).await;
        if outcome == WriteOutcome::Written {
            let (added, removed) = (list.added.join(" "), list.removed.join(" "));
            tracing::debug!(node = name, added, removed, "updated volumesAttached");
            let added = views.iter().filter(|view| list.added.contains(&view.name.to_string()));
            for (view, node_view) in added.filter_map(|view| Some((view, view.nodes.get(name)?))) {
                for pod in &node_view.pods {
                    let note = messages::attached(view.display_name(node_view));
                    let (kind, reason) = (EventType::Normal, reason::SUCCESSFUL_ATTACH_VOLUME);
                    self.context.events.record_for(&**pod, kind, reason, note);
                }
            }
        }
        // If the node's status is unchanged, steps that depend on it keep waiting.
        outcome.next_step(|error| {
            tracing::warn!(node = name, %error, "failed to update volumesAttached of node");
        })
    }
}

/// Whether a failed request may have taken effect, or may still do so.
fn may_take_effect(error: &ApiError) -> bool {
    matches!(error, ApiError::Unavailable(_) | ApiError::Other { .. })
}
