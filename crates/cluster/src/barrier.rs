//! The freshness barrier of a new leader: it acts only after its stores have reached the state that the server had when
//! the lease was acquired. Otherwise it could act on what its predecessor has changed since.
//!
//! It costs one LIST of a single object for each store. A store that the watch does not bring up to date soon, because
//! nothing changes or because the watch hangs, is listed again: only that proves that it has missed nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use wharf_model::Kind;

use crate::error::ApiError;
use crate::store::{Store, SyncState};
use crate::transport::Transport;
use crate::watch::{decode, version_call};

/// How long the watch gets to deliver what has changed.
const WATCH_TIME: Duration = Duration::from_secs(1);
/// The pause after a failed request.
const RETRY: Duration = Duration::from_secs(1);

/// A store that can be brought up to date.
pub(crate) trait Refresh: Send + Sync {
    /// Waits until the store has reached the server's present state.
    fn refresh<'a>(&'a self, transport: &'a Transport) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

impl<K: Kind> Refresh for Store<K> {
    fn refresh<'a>(&'a self, transport: &'a Transport) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            loop {
                // The cluster does not have the kind, or the role works without it.
                if matches!(self.wait_settled().await, SyncState::NotServed | SyncState::Forbidden) {
                    return;
                }
                match self.server_version(transport).await {
                    Ok(version) => {
                        if timeout(WATCH_TIME, self.wait_version(&version)).await.is_err() {
                            self.request_relist();
                            self.wait_version(&version).await;
                        }
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(kind = K::API.kind, %error, "failed to read the version of the objects; retrying");
                        sleep(RETRY).await;
                    }
                }
            }
        })
    }
}

impl<K: Kind> Store<K> {
    async fn server_version(&self, transport: &Transport) -> Result<String, ApiError> {
        let call = version_call::<K>(self.watch_options());
        let subject = call.subject;
        let bytes = transport.send(call).await?;
        let page = decode::page::<K>(&bytes, self.view()).map_err(|error| ApiError::Other {
            refusal: subject.refusal(format!("failed to decode list: {error}")),
            status: 200,
        })?;
        Ok(page.version)
    }
}

/// The stores of one role.
#[derive(Clone)]
pub(crate) struct Barrier {
    transport: Transport,
    stores: Arc<Mutex<Vec<Arc<dyn Refresh>>>>,
    /// The term of leadership for which the stores are up to date.
    passed: Arc<Mutex<Option<u64>>>,
}

impl Barrier {
    pub(crate) fn new(transport: Transport) -> Self {
        Self { transport, stores: Arc::default(), passed: Arc::default() }
    }

    pub(crate) fn add(&self, store: Arc<dyn Refresh>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    pub(crate) fn has_passed(&self, term: u64) -> bool {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) == Some(term)
    }

    /// Waits until the stores are as new as the term.
    pub(crate) async fn pass(&self, term: u64) {
        if self.has_passed(term) {
            return;
        }
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for store in stores {
            store.refresh(&self.transport).await;
        }
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(term);
    }
}

#[cfg(test)]
mod tests;
