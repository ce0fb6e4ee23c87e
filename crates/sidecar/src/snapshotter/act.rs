//! Does the one step that was decided, and puts what came of it where the next view sees it: in the stores, by way
//! of the server's answers, and in memory.

use std::collections::BTreeMap;

use tonic::Code;
use wharf_cluster::{ApiError, EventType, now};
use wharf_model::patch::Patch;
use wharf_model::{Key, Kind, SecretRef, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::decide::Step;
use super::memory::{Doing, Failed, Failure, Memory};
use super::request::{Ask, Call, Deletion, Refusal};
use super::status::{full_message, reason};
use super::view::{Object, Source, Which};
use super::{ROLE, Snapshotter, Subject};
use crate::secret::{self, SecretError};
use wharf_cluster::work::Outcome;

/// So often in a row an object may turn out to be another than we saw, before that counts as a failure.
const STALE: u32 = 5;

/// What is held from one step to the next, and dropped when the content is left.
#[derive(Default)]
pub(super) struct Hand {
    /// Read to see whether the driver can be called, and used when it is.
    secrets: Option<(Option<SecretRef>, Secrets)>,
    /// How often an object was not as we saw it.
    stale: u32,
    /// The server has shown us the content, or taken a write to it.
    pub(super) confirmed: bool,
}

/// The values of a call's secret.
#[derive(Clone, Default)]
struct Secrets {
    values: BTreeMap<String, String>,
    /// The call goes without the secret that it should have.
    missing: bool,
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

/// One content, to act on.
pub(super) struct One<'a> {
    pub(super) snapshotter: &'a Snapshotter,
    pub(super) subject: &'a Subject,
    pub(super) object: &'a Object,
}

impl One<'_> {
    fn name(&self) -> &str {
        &self.object.meta().name
    }

    /// Does a step.
    pub(super) async fn act(&self, step: Step, hand: &mut Hand) -> Then {
        match step {
            Step::Done => Then::End(Outcome::Done),
            Step::Wait(pause) => Then::End(Outcome::After(pause)),
            Step::Claim { patch } => self.wrote(None, patch, hand, "cannot claim it for this node").await,
            Step::Mark { patch, ask } => self.mark(patch, ask, hand).await,
            Step::Confirm => self.confirm(hand).await,
            Step::Ask { doing, ask } => self.ask(doing, ask, hand).await,
            Step::Tell { patch } => {
                let then = self.wrote(Some("status"), patch, hand, "cannot write the status").await;
                if matches!(then, Then::Again) {
                    // If the content was another than we saw, the driver is asked again.
                    self.remember(Memory::is_written);
                }
                then
            }
            Step::Unmark { patch } => self.wrote(None, patch, hand, "cannot take the mark off").await,
            Step::Delete { ask } => self.delete(ask, hand).await,
            Step::Clear { patch } => self.wrote(Some("status"), patch, hand, "cannot clear the status").await,
            Step::Release { patch } => {
                let then = self.wrote(None, patch, hand, "cannot take our finalizer off").await;
                tracing::debug!(content = self.name(), "let go");
                then
            }
            Step::Refuse { doing, why } => self.refuse(doing, &why),
            Step::Report { patch } => self.report(patch, hand).await,
        }
    }

    /// Marks the content, if the call that it is marked for can be made: what cannot be called now shall not hold up
    /// the content's deletion.
    async fn mark(&self, patch: Patch, ask: Ask<Call>, hand: &mut Hand) -> Then {
        let secrets = match self.secrets(&ask, hand).await {
            Ok(secrets) => secrets,
            Err(error) => return self.no_secret(Doing::Create, &error),
        };
        hand.secrets = Some((ask.secret, secrets));
        let written = self.write(None, patch, hand).await;
        if matches!(written, Written::Yes) {
            self.remember(|memory| memory.settled = true);
        }
        self.then(written, "cannot mark it as being created")
    }

    async fn confirm(&self, hand: &mut Hand) -> Then {
        let (cluster, key) = (&self.snapshotter.context.cluster, Key::cluster(self.name()));
        // What is read enters the store.
        let there = match self.object.which() {
            Which::Snapshot => cluster.get::<VolumeSnapshotContent>(&key).await.map(|read| read.is_some()),
            Which::Group => cluster.get::<VolumeGroupSnapshotContent>(&key).await.map(|read| read.is_some()),
        };
        match there {
            Ok(true) => {
                hand.confirmed = true;
                Then::Again
            }
            // The watch will tell.
            Ok(false) => Then::End(Outcome::Done),
            Err(error) => {
                tracing::warn!(content = self.name(), %error, "cannot see whether the content is still there");
                Then::End(Outcome::Retry)
            }
        }
    }

    async fn ask(&self, doing: Doing, ask: Ask<Call>, hand: &mut Hand) -> Then {
        let secrets = match self.secrets(&ask, hand).await {
            Ok(secrets) => secrets,
            Err(error) => return self.no_secret(doing, &error),
        };
        let Snapshotter { context, settings, .. } = self.snapshotter;
        let (method, whole) = (ask.call.method(), ask.whole && !secrets.missing);
        let creates = matches!(ask.call, Call::Create(_) | Call::CreateGroup(_));
        match ask.call.make(&context.driver, settings.pace.timeout, &secrets.values).await {
            Ok(answer) => {
                let (handle, ready) = (&answer.handle, answer.ready);
                tracing::debug!(content = self.name(), handle, ready, "{method}");
                context.attempts.note(ROLE, self.name(), method, None);
                self.remember(|memory| memory.has_answered(answer, now()));
                Then::Again
            }
            Err(refused) => {
                let mut message = self.told(creates, &refused.said);
                if !whole {
                    message.push_str(
                        " (asked without the class or the secret that the content names: create what is missing)",
                    );
                }
                // A call that does not say all that the first one said may be refused for what it lacks.
                let proves = creates && (whole || refused.code == Some(Code::NotFound));
                let asked_at = proves.then(|| self.object.meta().resource_version.clone());
                self.failed(method, Failed { doing, message, code: refused.code, soon: false, asked_at })
            }
        }
    }

    /// What went wrong, in upstream's words.
    fn told(&self, creates: bool, said: &str) -> String {
        let content = self.name();
        let of = match self.object.source() {
            Source::Take(volumes) => volumes.join(" "),
            Source::There { .. } | Source::InGroup | Source::Nowhere => String::new(),
        };
        let what = match (creates, self.object.which()) {
            (true, Which::Snapshot) => format!("failed to take snapshot of the volume {of}"),
            (true, Which::Group) => format!("failed to take group snapshot of the volumes [{of}]"),
            (false, Which::Snapshot) => format!("failed to list snapshot for content {content}"),
            (false, Which::Group) => {
                format!("failed to list group snapshot for group snapshot content {content}")
            }
        };
        format!("{what}: {said:?}")
    }

    async fn delete(&self, ask: Ask<Deletion>, hand: &mut Hand) -> Then {
        let secrets = match self.secrets(&ask, hand).await {
            Ok(secrets) => secrets,
            Err(error) => return self.no_secret(Doing::Delete, &error),
        };
        let Snapshotter { context, settings, .. } = self.snapshotter;
        let method = ask.call.method();
        match ask.call.make(&context.driver, settings.pace.timeout, &secrets.values).await {
            Ok(()) => {
                context.attempts.note(ROLE, self.name(), method, None);
                self.remember(Memory::has_deleted);
                Then::Again
            }
            Err(refused) => {
                let (doing, message, code) = (Doing::Delete, refused.said, refused.code);
                self.failed(method, Failed { doing, message, code, soon: false, asked_at: None })
            }
        }
    }

    /// sidecars.md 1.0 "Secrets": read for each call.
    async fn secrets<C>(&self, ask: &Ask<C>, hand: &mut Hand) -> Result<Secrets, SecretError> {
        if let Some((held, secrets)) = hand.secrets.take()
            && held == ask.secret
        {
            return Ok(secrets);
        }
        match secret::read(&self.snapshotter.context.cluster, ask.secret.as_ref()).await {
            Ok(values) => Ok(Secrets { values, missing: false }),
            Err(SecretError::Missing(key)) if ask.without_secret => {
                tracing::warn!(content = self.name(), secret = %key, "the secret is gone: calling without it");
                Ok(Secrets { missing: true, ..Secrets::default() })
            }
            Err(error) => Err(error),
        }
    }

    fn no_secret(&self, doing: Doing, error: &SecretError) -> Then {
        let (noun, content) = (self.object.words().noun, self.name());
        let message = format!("cannot get credentials for {noun} content {content:?}: {error}");
        let message = match doing {
            Doing::Create => {
                format!("failed to get input parameters to create {noun} for content {content}: {message:?}")
            }
            Doing::Check | Doing::Delete => message,
        };
        self.failed("secret", Failed { doing, message, code: None, soon: true, asked_at: None })
    }

    fn refuse(&self, doing: Doing, why: &Refusal) -> Then {
        let message = why.to_string();
        self.failed("check", Failed { doing, message, code: None, soon: false, asked_at: None })
    }

    fn failed(&self, step: &'static str, failed: Failed) -> Then {
        let Snapshotter { context, backoff, .. } = self.snapshotter;
        let (error, doing) = (failed.message.clone(), failed.doing);
        let what = self.object.words().failed(doing).1;
        tracing::warn!(content = self.name(), step, error, "{what}");
        context.attempts.note(ROLE, self.name(), step, Some(error));
        self.remember(|memory| memory.has_failed(failed, *backoff, now()));
        if doing == Doing::Delete {
            // Only events tell of it.
            self.event();
        }
        Then::Again
    }

    /// Tells of the failure that is remembered.
    fn event(&self) {
        let Snapshotter { context, memories, .. } = self.snapshotter;
        let Some(failure) = memories.of(self.subject, &self.object.meta().uid).failure else { return };
        let (reason, note) = (reason(self.object, &failure), full_message(self.object, &failure));
        match self.object {
            Object::Snapshot(content) => context.event(&**content, EventType::Warning, reason, note),
            Object::Group(content) => context.event(&**content, EventType::Warning, reason, note),
        }
    }

    async fn report(&self, patch: Option<Patch>, hand: &mut Hand) -> Then {
        let reported = |failure: &mut Failure| failure.reported = true;
        let Some(patch) = patch else {
            // The status says so already, and so did an event.
            self.remember(|memory| memory.failure.iter_mut().for_each(reported));
            return Then::Again;
        };
        match self.write(Some("status"), patch, hand).await {
            Written::Stale => return Then::Again,
            Written::Yes | Written::Gone => {}
            // As good as it gets: the next attempt tells again.
            Written::No(error) => {
                tracing::warn!(content = self.name(), %error, "cannot write down the failure")
            }
        }
        self.event();
        self.remember(|memory| memory.failure.iter_mut().for_each(reported));
        Then::Again
    }

    /// A write that has no other way but to succeed.
    async fn wrote(
        &self,
        subresource: Option<&str>,
        patch: Patch,
        hand: &mut Hand,
        what: &'static str,
    ) -> Then {
        let written = self.write(subresource, patch, hand).await;
        self.then(written, what)
    }

    fn then(&self, written: Written, what: &'static str) -> Then {
        match written {
            Written::Yes | Written::Stale => Then::Again,
            // The watch will tell, and there is nothing left to say to it.
            Written::Gone => Then::End(Outcome::Done),
            Written::No(error) => {
                tracing::warn!(content = self.name(), %error, "{what}");
                self.snapshotter.context.attempts.note(ROLE, self.name(), what, Some(error.to_string()));
                Then::End(Outcome::Retry)
            }
        }
    }

    async fn write(&self, subresource: Option<&str>, patch: Patch, hand: &mut Hand) -> Written {
        match self.object.which() {
            Which::Snapshot => self.write_as::<VolumeSnapshotContent>(subresource, patch, hand).await,
            Which::Group => self.write_as::<VolumeGroupSnapshotContent>(subresource, patch, hand).await,
        }
    }

    async fn write_as<K: Kind>(&self, subresource: Option<&str>, patch: Patch, hand: &mut Hand) -> Written {
        let (cluster, key) = (&self.snapshotter.context.cluster, Key::cluster(self.name()));
        match cluster.patch(&K::API, &key, subresource, patch).await {
            Ok(_) => {
                hand.confirmed = true;
                Written::Yes
            }
            Err(ApiError::NotFound(_)) => Written::Gone,
            // Our store is behind: what we read now enters it.
            Err(ApiError::Conflict(_) | ApiError::Invalid(_)) if hand.stale < STALE => {
                hand.stale += 1;
                match cluster.get::<K>(&key).await {
                    Ok(Some(_)) => {
                        hand.confirmed = true;
                        Written::Stale
                    }
                    Ok(None) => Written::Gone,
                    Err(error) => Written::No(error),
                }
            }
            Err(error) => Written::No(error),
        }
    }

    fn remember(&self, change: impl FnOnce(&mut Memory)) {
        self.snapshotter.memories.change(self.subject, &self.object.meta().uid, change);
    }
}
