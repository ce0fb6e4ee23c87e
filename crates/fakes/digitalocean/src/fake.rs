//! A fake that runs: in the process of a test, or as a program.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cloud::{Cloud, Disk, DiskError, Inside, Tokens, blocking, locked};
use crate::devices::{Devices, DevicesError};
use crate::faults::{Fault, Faults};
use crate::knobs::Knobs;
use crate::options::{DropletOptions, Options};
use crate::requests::Logged;
use crate::server::{self, Side};
use crate::state::{Droplet, State};
use crate::store::{Store, StoreError};
use crate::time::Millis;

/// How often it looks for what is due when nothing tells it to.
const LOOK: Duration = Duration::from_millis(500);

/// A fake that runs until [`Fake::stop`]; dropped, it stops serving too.
pub struct Fake {
    cloud: Arc<Cloud>,
    devices: Option<Arc<Mutex<Devices>>>,
    api: SocketAddr,
    metadata: Vec<(u64, SocketAddr)>,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// Why a fake does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The state cannot be had.
    #[error(transparent)]
    State(#[from] StoreError),
    /// Real devices need a place for their bytes.
    #[error("volumes can be real only with a directory for the state")]
    NoState,
    /// Devices cannot be had.
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

/// Why a fake did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The state was not written.
    #[error(transparent)]
    State(#[from] StoreError),
    /// A device or link is still there.
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

impl Fake {
    /// Starts it on the runtime of the caller.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let Options { listen, state: root, tokens, droplets, knobs, faults: given, attach_real } = options;
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
        let inside = Inside::new(state, knobs, faults, Tokens::new(tokens));
        let cloud = Arc::new(Cloud::new(inside, Disk { store, devices: devices.clone() }));
        let stop = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(go_on(cloud.clone(), stop.clone()))];
        for (listener, side) in listeners {
            tasks.push(tokio::spawn(server::serve(listener, cloud.clone(), side, stop.clone())));
        }
        Ok(Self { cloud, devices, api, metadata, stop, tasks })
    }

    /// The API's address, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The metadata service of a droplet that was there from the start, without a slash at its end.
    pub fn metadata_url(&self, droplet: u64) -> Option<String> {
        let (_, address) = self.metadata.iter().find(|(id, _)| *id == droplet)?;
        Some(format!("http://{address}"))
    }

    /// The metadata services of all of them.
    pub fn metadata_urls(&self) -> impl Iterator<Item = (u64, String)> {
        self.metadata.iter().map(|(id, address)| (*id, format!("http://{address}")))
    }

    /// Adds a fault, and answers its number.
    pub fn add_fault(&self, fault: Fault) -> u64 {
        self.cloud.lock().faults.add(fault)
    }

    /// Takes one fault away; says whether it was there.
    pub fn remove_fault(&self, number: u64) -> bool {
        self.cloud.lock().faults.remove(number)
    }

    /// Takes all faults away.
    pub fn clear_faults(&self) {
        self.cloud.lock().faults.clear();
    }

    /// The requests that it got, oldest first; metadata's too.
    pub fn requests(&self) -> Vec<Logged> {
        self.cloud.lock().log.all()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.cloud.lock().log.clear();
    }

    /// Lets a token in.
    pub fn allow_token(&self, token: &str) {
        self.cloud.lock().tokens.allow(token);
    }

    /// Lets a token in no more: 401.
    pub fn revoke_token(&self, token: &str) {
        self.cloud.lock().tokens.revoke(token);
    }

    /// What the settings are.
    pub fn knobs(&self) -> Knobs {
        self.cloud.lock().knobs.clone()
    }

    /// Changes the settings, from now on.
    pub fn set_knobs(&self, change: impl FnOnce(&mut Knobs)) {
        self.cloud.change(|inside| change(&mut inside.knobs));
    }

    /// What it holds now.
    pub fn state(&self) -> State {
        self.cloud.change(|inside| inside.state.clone())
    }

    /// Changes what it holds, by hand: volumes that somebody made before, droplets that come later.
    pub fn change<T>(&self, change: impl FnOnce(&mut State, Millis) -> T) -> T {
        let now = self.cloud.clock.now();
        self.cloud.change(|inside| change(&mut inside.state, now))
    }

    /// Moves its clock on: actions end, limits are forgotten.
    pub fn advance(&self, by: Duration) {
        self.cloud.clock.advance(by);
        self.cloud.change(|_| {});
    }

    /// Stops it: no more answers, the state is written, devices and links are gone. What is attached stays so in the
    /// state, and is there again after the next start.
    pub async fn stop(mut self) -> Result<(), StopError> {
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            // A task that panicked has said so; the state is still worth keeping.
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

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.cancel();
        // A test that failed must not leave devices behind either; what is in use stays.
        if let Some(devices) = self.devices.take()
            && let Err(error) = locked(&devices).close(&self.state())
        {
            tracing::warn!(%error, "devices were left behind");
        }
    }
}

/// Makes happen what is due, when it is due.
async fn go_on(cloud: Arc<Cloud>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let changed = cloud.changed.notified();
        let next = cloud.settle().await.unwrap_or_else(|error| {
            tracing::error!(%error, "not settled");
            None
        });
        let wait = next.map_or(LOOK, |at| {
            Duration::from_millis((at - cloud.clock.now()).max(1).unsigned_abs()).min(LOOK)
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

fn address(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen { address: asked, source })
}
