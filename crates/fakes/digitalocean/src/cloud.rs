//! All that is shared: the state, the settings, the faults, the log; and how one request goes through them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::answer::Answer;
use crate::devices::{Devices, DevicesError};
use crate::faults::{Faults, What};
use crate::knobs::Knobs;
use crate::limits::{Verdict, Window};
use crate::request::Request;
use crate::requests::Log;
use crate::rules::{self, Room};
use crate::state::State;
use crate::store::{Store, StoreError};
use crate::time::{Clock, Millis};

/// What is shared by all connections.
pub(crate) struct Cloud {
    pub(crate) clock: Clock,
    inside: Mutex<Inside>,
    /// Held by whoever changes files, so that they follow the state in its order.
    disk: tokio::sync::Mutex<Disk>,
    /// Something changed: the next thing may be due sooner.
    pub(crate) changed: Notify,
}

/// Where the state is kept, and where volumes are real.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) devices: Option<Arc<Mutex<Devices>>>,
}

/// What went wrong with files or devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(transparent)]
    State(#[from] StoreError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

/// What needs the lock.
pub(crate) struct Inside {
    pub(crate) state: State,
    pub(crate) knobs: Knobs,
    pub(crate) faults: Faults,
    pub(crate) log: Log,
    pub(crate) tokens: Tokens,
    windows: HashMap<String, Window>,
    /// The state is newer than its file.
    unsaved: bool,
}

/// Which tokens are let in.
pub(crate) struct Tokens {
    /// None lets in all.
    allowed: Option<BTreeSet<String>>,
    revoked: BTreeSet<String>,
}

impl Tokens {
    pub(crate) fn new(allowed: Vec<String>) -> Self {
        let allowed = (!allowed.is_empty()).then(|| allowed.into_iter().collect());
        Self { allowed, revoked: BTreeSet::new() }
    }

    pub(crate) fn allow(&mut self, token: &str) {
        self.revoked.remove(token);
        if let Some(allowed) = &mut self.allowed {
            allowed.insert(token.to_owned());
        }
    }

    pub(crate) fn revoke(&mut self, token: &str) {
        self.revoked.insert(token.to_owned());
    }

    fn lets_in(&self, token: &str) -> bool {
        let allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
        allowed && !self.revoked.contains(token)
    }
}

impl Cloud {
    pub(crate) fn new(inside: Inside, disk: Disk) -> Self {
        Self {
            clock: Clock::default(),
            inside: Mutex::new(inside),
            disk: tokio::sync::Mutex::new(disk),
            changed: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inside> {
        locked(&self.inside)
    }

    /// Changes the state by hand.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        let changed = {
            let mut inside = self.lock();
            inside.state.advance(self.clock.now());
            inside.unsaved = true;
            change(&mut inside)
        };
        self.changed.notify_waiters();
        changed
    }

    /// One request of the API, with what its headers say of the rate. The effect is durable when this returns.
    pub(crate) async fn serve(
        &self,
        request: &Request,
        token: Option<&str>,
        fault: Option<&What>,
    ) -> (Answer, Option<Verdict>) {
        // Reading needs no disk, and must not wait for a copy.
        if request.method == "GET" {
            return self.lock().serve(request, token, fault, self.clock.now());
        }
        let disk = self.disk.lock().await;
        let (mut answer, verdict) = self.lock().serve(request, token, fault, self.clock.now());
        if let Err(error) = self.keep(&disk, answer.copy.take()).await {
            tracing::error!(%error, method = request.method, path = request.path, "not kept");
            answer = Answer::error(500, "Server Error");
        }
        drop(disk);
        self.changed.notify_waiters();
        (answer, verdict)
    }

    /// Makes durable what a request did.
    async fn keep(&self, disk: &Disk, copy: Option<(String, String)>) -> Result<(), DiskError> {
        if let (Some((from, to)), Some(devices)) = (copy, disk.devices.clone()) {
            let target = to.clone();
            let copied = blocking(move || locked(&devices).copy(&from, &to)).await;
            if copied.is_err() {
                // Not half of it: the volume or snapshot was not made.
                let mut inside = self.lock();
                inside.state.volumes.remove(&target);
                inside.state.snapshots.remove(&target);
            }
            copied?;
        }
        self.save(disk).await
    }

    /// Makes happen what is due, keeps it, and brings devices about; tells when to come back.
    pub(crate) async fn settle(self: &Arc<Self>) -> Result<Option<Millis>, DiskError> {
        let devices = {
            let disk = self.disk.lock().await;
            self.lock().advance(self.clock.now());
            self.save(&disk).await?;
            disk.devices.clone()
        };
        let due = self.lock().state.next_due();
        let Some(devices) = devices else { return Ok(due) };
        let cloud = self.clone();
        let next = blocking(move || {
            // Their lock comes first: a snapshot that was copied before is then in the state that is followed, and
            // its bytes are not taken for nobody's.
            let mut devices = locked(&devices);
            let (state, knobs) = {
                let inside = cloud.lock();
                (inside.state.clone(), inside.knobs.clone())
            };
            devices.follow(&state, &knobs, cloud.clock.now())
        });
        Ok(due.into_iter().chain(next.await?).min())
    }

    async fn save(&self, disk: &Disk) -> Result<(), DiskError> {
        let state = {
            let mut inside = self.lock();
            if !std::mem::take(&mut inside.unsaved) {
                return Ok(());
            }
            inside.state.clone()
        };
        let Some(store) = disk.store.clone() else { return Ok(()) };
        let saved = blocking(move || store.save(&state)).await;
        if saved.is_err() {
            self.lock().unsaved = true;
        }
        Ok(saved?)
    }
}

/// Plain data and handles: a panic elsewhere leaves them as good as they were.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what blocks on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that ends cancels what blocks, and then nobody waits for us either.
            Err(_) => std::future::pending().await,
        },
    }
}

impl Inside {
    pub(crate) fn new(state: State, knobs: Knobs, faults: Faults, tokens: Tokens) -> Self {
        Self { state, knobs, faults, tokens, log: Log::default(), windows: HashMap::new(), unsaved: true }
    }

    fn advance(&mut self, now: Millis) {
        self.unsaved |= self.state.advance(now);
    }

    fn serve(
        &mut self,
        request: &Request,
        token: Option<&str>,
        fault: Option<&What>,
        now: Millis,
    ) -> (Answer, Option<Verdict>) {
        self.advance(now);
        let Some(token) = token.filter(|token| self.tokens.lets_in(token)) else {
            return (Answer::unauthorized(), None);
        };
        let verdict = self.windows.entry(token.to_owned()).or_default().take(&self.knobs, now);
        if !verdict.allowed {
            let mut answer = Answer::error(429, "API Rate limit exceeded.");
            answer.retry_after = verdict.retry_after;
            return (answer, Some(verdict));
        }
        let mut room = Room { state: &mut self.state, knobs: &self.knobs, request, now, fault };
        let answer = rules::answer(&mut room);
        self.unsaved |= request.method != "GET" && answer.status < 300;
        (answer, Some(verdict))
    }
}
