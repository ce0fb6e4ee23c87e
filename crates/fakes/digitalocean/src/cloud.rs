//! The shared state of a fake (API state, settings, faults, request log), and how it serves a request.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::devices::{Devices, DevicesError};
use crate::faults::{FaultEffect, Faults};
use crate::limits::{RateLimit, Window};
use crate::request::Request;
use crate::requests::Log;
use crate::response::ApiResponse;
use crate::rules::{self, RequestContext};
use crate::settings::FakeSettings;
use crate::state::State;
use crate::store::{Store, StoreError};
use crate::time::{Clock, Millis};

/// State shared by all connections.
pub(crate) struct Cloud {
    pub(crate) clock: Clock,
    inner: Mutex<Inner>,
    /// Held while files are changed, so that they follow the state in order.
    disk: tokio::sync::Mutex<Disk>,
    /// The state changed: the next action may be due sooner.
    pub(crate) changed: Notify,
}

/// The state directory and the real devices, if configured.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) devices: Option<Arc<Mutex<Devices>>>,
}

/// A failure with files or devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(transparent)]
    State(#[from] StoreError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

/// State protected by the lock.
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) settings: FakeSettings,
    pub(crate) faults: Faults,
    pub(crate) log: Log,
    pub(crate) tokens: Tokens,
    windows: HashMap<String, Window>,
    /// Whether the state has changes that are not in its file.
    unsaved: bool,
}

/// Accepted and revoked tokens.
pub(crate) struct Tokens {
    /// None accepts all.
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

    fn accepts(&self, token: &str) -> bool {
        let allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
        allowed && !self.revoked.contains(token)
    }
}

impl Cloud {
    pub(crate) fn new(inner: Inner, disk: Disk) -> Self {
        Self {
            clock: Clock::default(),
            inner: Mutex::new(inner),
            disk: tokio::sync::Mutex::new(disk),
            changed: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Changes the state directly, for tests.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = {
            let mut inner = self.lock();
            inner.state.advance(self.clock.now());
            inner.unsaved = true;
            change(&mut inner)
        };
        self.changed.notify_waiters();
        changed
    }

    /// Serves one API request; also returns the rate limit for the headers. The effect is durable when this returns.
    pub(crate) async fn serve(
        &self,
        request: &Request,
        token: Option<&str>,
        fault: Option<&FaultEffect>,
    ) -> (ApiResponse, Option<RateLimit>) {
        // Reads need no disk and must not wait for a copy.
        if request.method == "GET" {
            return self.lock().serve(request, token, fault, self.clock.now());
        }
        let disk = self.disk.lock().await;
        let (mut response, rate_limit) = self.lock().serve(request, token, fault, self.clock.now());
        if let Err(error) = self.keep(&disk, response.copy.take()).await {
            tracing::error!(%error, method = request.method, path = request.path, "failed to persist the effect of a request");
            response = ApiResponse::error(500, "Server Error");
        }
        drop(disk);
        self.changed.notify_waiters();
        (response, rate_limit)
    }

    /// Makes the effect of a request durable.
    async fn keep(&self, disk: &Disk, copy: Option<(String, String)>) -> Result<(), DiskError> {
        if let (Some((from, to)), Some(devices)) = (copy, disk.devices.clone()) {
            let target = to.clone();
            let copied = blocking(move || locked(&devices).copy(&from, &to)).await;
            if copied.is_err() {
                // Undo it: the volume or snapshot was not created.
                let mut inner = self.lock();
                inner.state.volumes.remove(&target);
                inner.state.snapshots.remove(&target);
            }
            copied?;
        }
        self.save(disk).await
    }

    /// Completes due actions, saves the state and reconciles the devices; returns when to run again.
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
            // Lock the devices before reading the state: a snapshot copied before is then in that state, and its image
            // is not removed as unknown.
            let mut devices = locked(&devices);
            let (state, settings) = {
                let inner = cloud.lock();
                (inner.state.clone(), inner.settings.clone())
            };
            devices.follow(&state, &settings, cloud.clock.now())
        });
        Ok(due.into_iter().chain(next.await?).min())
    }

    async fn save(&self, disk: &Disk) -> Result<(), DiskError> {
        let state = {
            let mut inner = self.lock();
            if !std::mem::take(&mut inner.unsaved) {
                return Ok(());
            }
            inner.state.clone()
        };
        let Some(store) = disk.store.clone() else { return Ok(()) };
        let saved = blocking(move || store.save(&state)).await;
        if saved.is_err() {
            self.lock().unsaved = true;
        }
        Ok(saved?)
    }
}

/// Locks a mutex. The data is valid even after a panic elsewhere.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs blocking work on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime shutdown cancels blocking work, and then the result is not awaited.
            Err(_) => std::future::pending().await,
        },
    }
}

impl Inner {
    pub(crate) fn new(state: State, settings: FakeSettings, faults: Faults, tokens: Tokens) -> Self {
        Self { state, settings, faults, tokens, log: Log::default(), windows: HashMap::new(), unsaved: true }
    }

    fn advance(&mut self, now: Millis) {
        self.unsaved |= self.state.advance(now);
    }

    fn serve(
        &mut self,
        request: &Request,
        token: Option<&str>,
        fault: Option<&FaultEffect>,
        now: Millis,
    ) -> (ApiResponse, Option<RateLimit>) {
        self.advance(now);
        let Some(token) = token.filter(|token| self.tokens.accepts(token)) else {
            return (ApiResponse::unauthorized(), None);
        };
        let rate_limit = self.windows.entry(token.to_owned()).or_default().take(&self.settings, now);
        if !rate_limit.allowed {
            let mut response = ApiResponse::error(429, "API Rate limit exceeded.");
            response.retry_after = rate_limit.retry_after;
            return (response, Some(rate_limit));
        }
        let mut context =
            RequestContext { state: &mut self.state, settings: &self.settings, request, now, fault };
        let response = rules::response(&mut context);
        self.unsaved |= request.method != "GET" && response.status < 300;
        (response, Some(rate_limit))
    }
}
