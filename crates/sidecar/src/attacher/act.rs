//! Does the one step that was decided, and puts what came of it where the next view sees it: in the stores, by
//! way of the server's answers, and in memory.

use std::collections::BTreeMap;

use tonic::Status;
use wharf_cluster::{ApiError, Priority, WatchOptions, now};
use wharf_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use wharf_model::patch::Patch;
use wharf_model::{Key, Kind, PersistentVolume, SecretRef, VolumeAttachment};

use super::decide::Step;
use super::view::{Again, Doing, Failed, Memory, Published, Seen, Subject, View};
use super::{Attacher, BATCH, ROLE};
use crate::driver::described;
use crate::secret::{self, SecretError};
use wharf_cluster::work::Outcome;

/// So often in a row an object may turn out to be another than we saw, before that counts as a failure.
const STALE: u32 = 5;

/// What is held from one step to the next, and dropped when the volume is left.
#[derive(Default)]
pub(super) struct Hand {
    /// Read to see whether the driver can be called, and used when it is.
    secret: Option<(SecretRef, BTreeMap<String, String>)>,
    /// How often an object was not as we saw it.
    stale: u32,
}

/// How to go on.
pub(super) enum Then {
    /// With another look.
    Again,
    /// Not now.
    End(Outcome),
}

/// What came of a write.
enum Written {
    Yes,
    /// The object is another than we saw; by now the store has it as it is.
    Stale,
    /// There is no such object.
    Gone,
    No(ApiError),
}

impl Attacher {
    /// Does a step.
    pub(super) async fn act(&self, subject: &Subject, view: &View<'_>, step: Step, hand: &mut Hand) -> Then {
        match step {
            Step::Done => Then::End(Outcome::Done),
            Step::Wait(pause) => Then::End(Outcome::After(pause)),
            Step::AskReferences { uid } => {
                if let Some(volume) = subject.volume() {
                    self.memories.ask(volume, uid);
                    self.queue.add_after(Subject::References, BATCH);
                }
                Then::End(Outcome::Done)
            }
            Step::ReleaseVolume { patch } => self.release_volume(subject, patch, hand).await,
            Step::GuardVolume { ref attachment, .. }
            | Step::GuardAttachment { ref attachment, .. }
            | Step::Publish { ref attachment, .. }
            | Step::MarkAttached { ref attachment, .. }
            | Step::Unpublish { ref attachment, .. }
            | Step::ReleaseAttachment { ref attachment, .. }
            | Step::MarkDetached { ref attachment, .. }
            | Step::Refuse { ref attachment, .. }
            | Step::Report { ref attachment, .. } => {
                let named = |seen: &&Seen| seen.attachment.metadata.name == *attachment;
                match view.attachments.iter().find(named) {
                    Some(seen) => One { attacher: self, subject, seen }.act(step, hand).await,
                    None => Then::End(Outcome::Done),
                }
            }
        }
    }

    async fn release_volume(&self, subject: &Subject, patch: Patch, hand: &mut Hand) -> Then {
        let Some(volume) = subject.volume() else { return Then::End(Outcome::Done) };
        match self.write::<PersistentVolume>(volume, None, patch, hand).await {
            Written::Yes => {
                tracing::info!(volume, "no attachment is left: the volume may go");
                Then::Again
            }
            Written::Stale => Then::Again,
            Written::Gone => Then::End(Outcome::Done),
            Written::No(error) => {
                tracing::warn!(volume, %error, "cannot take our finalizer off the volume");
                Then::End(Outcome::Retry)
            }
        }
    }

    async fn write<K: Kind>(
        &self,
        name: &str,
        subresource: Option<&str>,
        patch: Patch,
        hand: &mut Hand,
    ) -> Written {
        let (cluster, key) = (&self.context.cluster, Key::cluster(name));
        match cluster.patch(&K::API, &key, subresource, patch).await {
            Ok(_) => Written::Yes,
            Err(ApiError::NotFound(_)) => Written::Gone,
            // Our store is behind: what we read now enters it.
            Err(ApiError::Conflict(_) | ApiError::Invalid(_)) if hand.stale < STALE => {
                hand.stale += 1;
                match cluster.get::<K>(&key).await {
                    Ok(Some(_)) => Written::Stale,
                    Ok(None) => Written::Gone,
                    Err(error) => Written::No(error),
                }
            }
            Err(error) => Written::No(error),
        }
    }

    /// Asks the server once for all volumes that wait to know whether attachments refer to them.
    pub(super) async fn ask_references(&self) -> Outcome {
        let asked = self.memories.take_asked();
        if asked.is_empty() {
            return Outcome::Done;
        }
        let failed = match self.context.cluster.list::<VolumeAttachment>(&WatchOptions::default()).await {
            Ok(listed) if listed.unreadable.is_empty() => {
                let name =
                    |attachment: &VolumeAttachment| attachment.spec.source.persistent_volume_name.clone();
                let referred: std::collections::BTreeSet<_> = listed.items.iter().filter_map(name).collect();
                for (volume, uid) in asked {
                    if !referred.contains(&volume) {
                        let subject = Subject::Volume(volume);
                        self.memories.set_unreferenced(&subject, uid);
                        self.queue.add(subject, Priority::Normal);
                    }
                }
                return Outcome::Done;
            }
            Ok(listed) => format!("{} VolumeAttachments cannot be read", listed.unreadable.len()),
            Err(error) => error.to_string(),
        };
        let error = failed;
        tracing::warn!(volumes = asked.len(), error, "cannot tell whether volumes are attached: they stay");
        for (volume, uid) in asked {
            self.memories.ask(&volume, uid);
        }
        Outcome::Retry
    }
}

/// One attachment, to act on.
struct One<'a> {
    attacher: &'a Attacher,
    subject: &'a Subject,
    seen: &'a Seen,
}

impl One<'_> {
    fn name(&self) -> &str {
        &self.seen.attachment.metadata.name
    }

    fn node(&self) -> &str {
        &self.seen.attachment.spec.node_name
    }

    async fn act(&self, step: Step, hand: &mut Hand) -> Then {
        match step {
            Step::GuardVolume { patch, .. } => self.guard_volume(patch, hand).await,
            Step::GuardAttachment { patch, secret, .. } => self.guard(patch, secret.as_ref(), hand).await,
            Step::Publish { request, secret, .. } => self.publish(*request, secret.as_ref(), hand).await,
            Step::Unpublish { request, secret, .. } => self.unpublish(request, secret.as_ref(), hand).await,
            Step::MarkAttached { patch, .. } => {
                let written = self.write(Some("status"), patch, hand).await;
                if matches!(written, Written::Yes) {
                    self.remember(Memory::is_written);
                    tracing::info!(attachment = self.name(), node = self.node(), "attached");
                }
                self.then(written, "cannot mark as attached")
            }
            Step::ReleaseAttachment { patch, .. } => {
                let written = self.write(None, patch, hand).await;
                if matches!(written, Written::Yes) {
                    tracing::info!(attachment = self.name(), node = self.node(), "detached");
                }
                self.then(written, "cannot take our finalizer off")
            }
            Step::MarkDetached { patch, .. } => {
                let written = self.write(Some("status"), patch, hand).await;
                if matches!(written, Written::Yes) {
                    self.remember(Memory::is_written);
                }
                self.then(written, "cannot mark as detached")
            }
            Step::Refuse { doing, why, .. } => self.failed(
                doing,
                "check",
                Failed { doing, message: why.to_string(), code: None, again: Again::Slowly },
            ),
            Step::Report { patch, .. } => {
                // As good as it gets: the next attempt tells again.
                if let Written::No(error) = self.write(Some("status"), patch, hand).await {
                    tracing::warn!(attachment = self.name(), %error, "cannot write down the failure");
                }
                self.remember(|memory| {
                    if let Some(failure) = &mut memory.failure {
                        failure.reported = true;
                    }
                });
                Then::Again
            }
            // Not about an attachment.
            Step::Done | Step::Wait(_) | Step::AskReferences { .. } | Step::ReleaseVolume { .. } => {
                Then::End(Outcome::Done)
            }
        }
    }

    async fn guard_volume(&self, patch: Patch, hand: &mut Hand) -> Then {
        let Some(volume) = self.subject.volume() else { return Then::End(Outcome::Done) };
        let step = "add PersistentVolume finalizer";
        match self.attacher.write::<PersistentVolume>(volume, None, patch, hand).await {
            Written::Yes | Written::Stale => Then::Again,
            Written::Gone => {
                let message = format!("could not {step}: PersistentVolume {volume:?} not found");
                self.failed(Doing::Attach, step, soon(Doing::Attach, message))
            }
            Written::No(error) => {
                self.failed(Doing::Attach, step, soon(Doing::Attach, format!("could not {step}: {error}")))
            }
        }
    }

    async fn guard(&self, patch: Patch, secret: Option<&SecretRef>, hand: &mut Hand) -> Then {
        // What cannot be called now shall not hold up the attachment's deletion: the secret first.
        let read = match self.secret(secret, hand).await {
            Ok(read) => read,
            Err(error) => {
                return self.failed(Doing::Attach, "secret", soon(Doing::Attach, error.to_string()));
            }
        };
        hand.secret = secret.cloned().map(|secret| (secret, read));
        match self.write(None, patch, hand).await {
            Written::Yes | Written::Stale => Then::Again,
            Written::Gone => Then::End(Outcome::Done),
            Written::No(error) => {
                let message = format!("could not save VolumeAttachment: {error}");
                self.failed(Doing::Attach, "guard", soon(Doing::Attach, message))
            }
        }
    }

    async fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
        secret: Option<&SecretRef>,
        hand: &mut Hand,
    ) -> Then {
        let method = "ControllerPublishVolume";
        let secrets = match self.secret(secret, hand).await {
            Ok(secrets) => secrets,
            Err(error) => {
                return self.failed(Doing::Attach, "secret", soon(Doing::Attach, error.to_string()));
            }
        };
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        tracing::debug!(volume, node, attachment = self.name(), "publishing");
        let request =
            ControllerPublishVolumeRequest { secrets: secrets.clone().into_iter().collect(), ..request };
        let Attacher { context, settings, .. } = self.attacher;
        let answer = context.driver.controller(method, settings.pace.timeout, |mut client| async move {
            client.controller_publish_volume(request).await
        });
        match answer.await {
            Ok(answer) => {
                context.attempts.note(ROLE, self.name(), method, None);
                let context = answer.publish_context.into_iter().collect();
                let version = self.seen.attachment.metadata.resource_version.clone();
                self.remember(|memory| memory.has_published(Published { context, version }));
                Then::Again
            }
            Err(status) => self.failed(Doing::Attach, method, refused(Doing::Attach, &status, &secrets)),
        }
    }

    async fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
        secret: Option<&SecretRef>,
        hand: &mut Hand,
    ) -> Then {
        let method = "ControllerUnpublishVolume";
        let secrets = match self.secret(secret, hand).await {
            Ok(secrets) => secrets,
            Err(error) => {
                return self.failed(Doing::Detach, "secret", soon(Doing::Detach, error.to_string()));
            }
        };
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        tracing::debug!(volume, node, attachment = self.name(), "unpublishing");
        let request =
            ControllerUnpublishVolumeRequest { secrets: secrets.clone().into_iter().collect(), ..request };
        let Attacher { context, settings, .. } = self.attacher;
        let answer = context.driver.controller(method, settings.pace.timeout, |mut client| async move {
            client.controller_unpublish_volume(request).await
        });
        match answer.await {
            Ok(_) => {
                context.attempts.note(ROLE, self.name(), method, None);
                self.remember(Memory::has_unpublished);
                Then::Again
            }
            Err(status) => self.failed(Doing::Detach, method, refused(Doing::Detach, &status, &secrets)),
        }
    }

    /// sidecars.md 1.0 "Secrets": read for each call.
    async fn secret(
        &self,
        secret: Option<&SecretRef>,
        hand: &mut Hand,
    ) -> Result<BTreeMap<String, String>, SecretError> {
        match hand.secret.take() {
            Some((held, values)) if Some(&held) == secret => Ok(values),
            _ => secret::read(&self.attacher.context.cluster, secret).await,
        }
    }

    async fn write(&self, subresource: Option<&str>, patch: Patch, hand: &mut Hand) -> Written {
        self.attacher.write::<VolumeAttachment>(self.name(), subresource, patch, hand).await
    }

    /// After a write that has no other way but to succeed.
    fn then(&self, written: Written, what: &'static str) -> Then {
        match written {
            Written::Yes | Written::Stale => Then::Again,
            // The watch will tell, and there is nothing left to say to it.
            Written::Gone => Then::End(Outcome::Done),
            Written::No(error) => {
                tracing::warn!(attachment = self.name(), node = self.node(), %error, "{what}");
                Then::End(Outcome::Retry)
            }
        }
    }

    fn failed(&self, doing: Doing, step: &'static str, failed: Failed) -> Then {
        let Attacher { context, backoff, .. } = self.attacher;
        let error = failed.message.as_str();
        let what = match doing {
            Doing::Attach => "cannot attach",
            Doing::Detach => "cannot detach",
        };
        tracing::warn!(attachment = self.name(), node = self.node(), step, error, "{what}");
        context.attempts.note(ROLE, self.name(), step, Some(failed.message.clone()));
        self.remember(|memory| memory.has_failed(failed, *backoff, now()));
        Then::Again
    }

    fn remember(&self, change: impl FnOnce(&mut Memory)) {
        self.attacher.memories.change(self.subject, &self.seen.attachment, change);
    }
}

fn soon(doing: Doing, message: String) -> Failed {
    Failed { doing, message, code: None, again: Again::Soon }
}

/// What the driver answered, in the words that upstream's attacher has for it.
fn refused(doing: Doing, status: &Status, secrets: &BTreeMap<String, String>) -> Failed {
    let message = described(status, secrets);
    Failed { doing, message, code: Some(status.code() as i32), again: Again::after(status.code()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.2 "Errors": the message is upstream's, the code gRPC's; no secret gets out by it.
    #[test]
    fn what_the_driver_said() {
        let secrets = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let status = Status::resource_exhausted("hunter2 is no password of node n1");
        let failed = refused(Doing::Attach, &status, &secrets);
        assert_eq!(
            failed,
            Failed {
                doing: Doing::Attach,
                message: "rpc error: code = ResourceExhausted desc = *** is no password of node n1".into(),
                code: Some(8),
                again: Again::Soon,
            }
        );
    }
}
