//! A running fake of DigitalOcean's API, in the process of a test or as a separate program.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cloud::{Cloud, Disk, DiskError, Inner, Tokens, blocking, locked};
use crate::devices::{Devices, DevicesError};
use crate::faults::{Fault, Faults};
use crate::options::{DropletOptions, FakeOptions};
use crate::requests::LoggedRequest;
use crate::server::{self, Side};
use crate::settings::FakeSettings;
use crate::state::{Droplet, State};
use crate::store::{Store, StoreError};
use crate::time::Millis;

/// How often due actions are checked when the state does not change.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A fake that runs until [`FakeDigitalOcean::stop`] is called or until it is dropped.
pub struct FakeDigitalOcean {
    cloud: Arc<Cloud>,
    devices: Option<Arc<Mutex<Devices>>>,
    api: SocketAddr,
    metadata: Vec<(u64, SocketAddr)>,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// Why a fake could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Listening on an address failed.
    #[error("failed to listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The state could not be opened.
    #[error(transparent)]
    State(#[from] StoreError),
    /// Real devices need a state directory for their data.
    #[error("real devices need a state directory")]
    NoState,
    /// Devices could not be prepared.
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

/// Why a fake did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The state could not be written.
    #[error(transparent)]
    State(#[from] StoreError),
    /// A device or link could not be removed.
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

impl From<DiskError> for StopError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::State(error) => Self::State(error),
            DiskError::Devices(error) => Self::Devices(error),
        }
    }
}

impl FakeDigitalOcean {
    /// Starts a fake on the caller's runtime.
    pub async fn start(options: FakeOptions) -> Result<Self, StartError> {
        let FakeOptions { listen, state: root, tokens, droplets, settings, faults: given, attach_real } =
            options;
        if attach_real.is_some() && root.is_none() {
            return Err(StartError::NoState);
        }
        let (store, mut state) = match root.clone() {
            Some(root) => {
                let (store, state) = blocking(move || Store::open(&root)).await?;
                (Some(Arc::new(store)), state)
            }
            None => (None, State::default()),
        };
        let mut faults = Faults::default();
        given.into_iter().for_each(|fault| _ = faults.add(fault));
        let listener = bind(listen).await?;
        let api = address(&listener, listen)?;
        let mut listeners = vec![(listener, Side::Api)];
        let mut metadata = Vec::new();
        for DropletOptions { id, region, name, metadata: listen } in droplets {
            let name = name.unwrap_or_else(|| format!("droplet-{id}"));
            state.droplets.entry(id).or_insert(Droplet { id, name, region, tags: Vec::new(), created: 0 });
            let listener = bind(listen).await?;
            metadata.push((id, address(&listener, listen)?));
            listeners.push((listener, Side::Metadata(id)));
        }
        let devices = match root.zip(attach_real) {
            Some((root, links)) => {
                let state = state.clone();
                let devices = blocking(move || Devices::open(&root, &links, &state)).await?;
                Some(Arc::new(Mutex::new(devices)))
            }
            None => None,
        };
        let inner = Inner::new(state, settings, faults, Tokens::new(tokens));
        let cloud = Arc::new(Cloud::new(inner, Disk { store, devices: devices.clone() }));
        let stop = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(run_due_actions(cloud.clone(), stop.clone()))];
        for (listener, side) in listeners {
            tasks.push(tokio::spawn(server::serve(listener, cloud.clone(), side, stop.clone())));
        }
        Ok(Self { cloud, devices, api, metadata, stop, tasks })
    }

    /// The API's URL, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The metadata service URL of a droplet from the options, without a trailing slash.
    pub fn metadata_url(&self, droplet: u64) -> Option<String> {
        let (_, address) = self.metadata.iter().find(|(id, _)| *id == droplet)?;
        Some(format!("http://{address}"))
    }

    /// The metadata service URLs of all droplets from the options.
    pub fn metadata_urls(&self) -> impl Iterator<Item = (u64, String)> {
        self.metadata.iter().map(|(id, address)| (*id, format!("http://{address}")))
    }

    /// Adds a fault and returns its number.
    pub fn add_fault(&self, fault: Fault) -> u64 {
        self.cloud.lock().faults.add(fault)
    }

    /// Removes a fault; returns whether it existed.
    pub fn remove_fault(&self, number: u64) -> bool {
        self.cloud.lock().faults.remove(number)
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.cloud.lock().faults.clear();
    }

    /// The received requests, oldest first, including those to metadata services.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.cloud.lock().log.all()
    }

    /// Clears the request log.
    pub fn forget_requests(&self) {
        self.cloud.lock().log.clear();
    }

    /// Accepts a token.
    pub fn allow_token(&self, token: &str) {
        self.cloud.lock().tokens.allow(token);
    }

    /// Revokes a token: requests with it get 401.
    pub fn revoke_token(&self, token: &str) {
        self.cloud.lock().tokens.revoke(token);
    }

    /// The current settings.
    pub fn settings(&self) -> FakeSettings {
        self.cloud.lock().settings.clone()
    }

    /// Changes the settings for all later requests.
    pub fn change_settings(&self, change: impl FnOnce(&mut FakeSettings)) {
        self.cloud.change(|inner| change(&mut inner.settings));
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.cloud.change(|inner| inner.state.clone())
    }

    /// Changes the state directly, for example to add existing volumes or later droplets.
    pub fn change<T>(&self, change: impl FnOnce(&mut State, Millis) -> T) -> T {
        let now = self.cloud.clock.now();
        self.cloud.change(|inner| change(&mut inner.state, now))
    }

    /// Advances the fake's clock: due actions complete, rate limits expire.
    pub fn advance(&self, by: Duration) {
        self.cloud.clock.advance(by);
        self.cloud.change(|_| {});
    }

    /// Stops the fake: it stops serving, writes the state, and removes devices and links. Attachments stay in the
    /// state, and their devices reappear after the next start.
    pub async fn stop(mut self) -> Result<(), StopError> {
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            // A panic was already reported; the state is still worth saving.
            _ = task.await;
        }
        self.cloud.settle().await?;
        if let Some(devices) = self.devices.take() {
            let state = self.state();
            blocking(move || locked(&devices).close(&state)).await?;
        }
        Ok(())
    }
}

impl Drop for FakeDigitalOcean {
    fn drop(&mut self) {
        self.stop.cancel();
        // A failed test must not leave devices behind either. Devices in use cannot be removed.
        if let Some(devices) = self.devices.take()
            && let Err(error) = locked(&devices).close(&self.state())
        {
            tracing::warn!(%error, "failed to detach devices");
        }
    }
}

/// Completes actions when they are due.
async fn run_due_actions(cloud: Arc<Cloud>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let changed = cloud.changed.notified();
        let next = cloud.settle().await.unwrap_or_else(|error| {
            tracing::error!(%error, "failed to complete due actions or reconcile devices");
            None
        });
        let wait = next.map_or(POLL_INTERVAL, |at| {
            Duration::from_millis((at - cloud.clock.now()).max(1).unsigned_abs()).min(POLL_INTERVAL)
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = changed => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })
}

fn address(listener: &TcpListener, requested: SocketAddr) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen { address: requested, source })
}
