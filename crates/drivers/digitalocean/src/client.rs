//! The API, typed and minimal: one method for each thing the driver asks.
//!
//! Promise: every call ends within its time ([`ClientOptions::patience`]); it is repeated only where a
//! repetition cannot do harm ([`retry`]); it keeps to the API's limits and leaves a reserve to those who detach
//! ([`budget`]). What is not there is `None` (or, for a delete, success), and only if the API itself said so.

pub mod budget;
mod call;
mod error;
mod paging;
pub mod retry;
mod token;
mod wire;

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::api::{Account, Action, Droplet, NewSnapshot, NewVolume, Snapshot, Volume, VolumeAction};
use budget::{Budget, Priority};
use call::Call;
use wire::Wire;

pub use error::{ApiError, Kind, Refused};
pub use token::{Token, TokenError};

#[cfg(test)]
pub(crate) use error::{CallName, classify};
pub(crate) use wire::{WireError, get_text};

/// Where DigitalOcean is.
pub const DEFAULT_URL: &str = "https://api.digitalocean.com/";
/// What DigitalOcean lets one token send in a minute.
pub const REQUESTS_A_MINUTE: u32 = 250;

/// How to speak to the API.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `https://api.digitalocean.com/`, or `http://` for a double.
    pub url: String,
    /// Who we are to it.
    pub token: Token,
    /// What we call ourselves.
    pub user_agent: String,
    /// How many requests a minute we send at most.
    pub requests_a_minute: u32,
    /// How long one call may take, with its repetitions and with waiting for its turn.
    pub patience: Duration,
}

impl ClientOptions {
    /// DigitalOcean's own limits, and 30 seconds for a call.
    pub fn new(url: impl Into<String>, token: Token) -> Self {
        Self {
            url: url.into(),
            token,
            user_agent: concat!("wharf/", env!("CARGO_PKG_VERSION")).to_owned(),
            requests_a_minute: REQUESTS_A_MINUTE,
            patience: Duration::from_secs(30),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is none that could be asked.
    #[error("{url:?} is no URL of an API: {reason}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The machine's certificates cannot be read.
    #[error("the machine's root certificates cannot be read: {0}")]
    Roots(std::io::Error),
}

/// The API; cheap to clone, and clones share connections and budget.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    priority: Priority,
}

#[derive(Debug)]
struct Shared {
    wire: Wire,
    token: Token,
    budget: Mutex<Budget>,
    patience: Duration,
}

/// Items of one page; ours and theirs at most.
pub(crate) const PER_PAGE: usize = 200;

impl Client {
    /// Makes no request.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let ClientOptions { url, token, user_agent, requests_a_minute, patience } = options;
        let wire = Wire::new(&url, &user_agent)?;
        let budget = Mutex::new(Budget::new(requests_a_minute));
        Ok(Self { shared: Arc::new(Shared { wire, token, budget, patience }), priority: Priority::Normal })
    }

    /// The same, for what must not be held up: it may use the reserve.
    pub fn urgent(&self) -> Self {
        Self { shared: self.shared.clone(), priority: Priority::Urgent }
    }

    /// The account behind the token.
    pub async fn account(&self) -> Result<Account, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            account: Account,
        }
        Ok(self.read::<Answer>(Call::get(["account"])).await?.account)
    }

    /// How many volumes the account has in all regions.
    pub async fn volume_count(&self) -> Result<u64, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            meta: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            total: u64,
        }
        let call = Call::get(["volumes"]).query("page", "1").query("per_page", "1");
        Ok(self.read::<Answer>(call).await?.meta.total)
    }

    /// One volume.
    pub async fn volume(&self, id: &str) -> Result<Option<Volume>, ApiError> {
        Ok(found(self.read::<VolumeAnswer>(Call::get(["volumes", id])).await)?.map(|answer| answer.volume))
    }

    /// The volumes of that name in the region; the API promises one at most.
    pub async fn volumes_named(&self, name: &str, region: &str) -> Result<Vec<Volume>, ApiError> {
        self.all(Call::get(["volumes"]).query("name", name).query("region", region)).await
    }

    /// All volumes of the region, over all pages.
    pub async fn volumes(&self, region: &str) -> Result<Vec<Volume>, ApiError> {
        self.all(Call::get(["volumes"]).query("region", region)).await
    }

    /// Makes a volume. If the error is uncertain, look for its name.
    pub async fn create_volume(&self, wanted: &NewVolume) -> Result<Volume, ApiError> {
        Ok(self.read::<VolumeAnswer>(Call::post(["volumes"], wanted)).await?.volume)
    }

    /// Deletes a volume; gone is success, attached is [`Kind::Conflict`].
    pub async fn delete_volume(&self, id: &str) -> Result<(), ApiError> {
        found(self.done(Call::delete(["volumes", id])).await).map(|_| ())
    }

    /// The snapshots of one volume, over all pages; `None` if there is no such volume.
    pub async fn snapshots_of(&self, volume: &str) -> Result<Option<Vec<Snapshot>>, ApiError> {
        found(self.all(Call::get(["volumes", volume, "snapshots"])).await)
    }

    /// One snapshot of a volume; a droplet's snapshot is `None`.
    pub async fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, ApiError> {
        let answer = found(self.read::<SnapshotAnswer>(Call::get(["snapshots", id])).await)?;
        Ok(answer.map(|answer| answer.snapshot).filter(|snapshot| snapshot.resource_type == "volume"))
    }

    /// All snapshots of volumes in the region, over all pages.
    pub async fn snapshots(&self, region: &str) -> Result<Vec<Snapshot>, ApiError> {
        let call = Call::get(["snapshots"]).query("resource_type", "volume");
        let mut snapshots: Vec<Snapshot> = self.all(call).await?;
        // Asked of the answer too: a region in the query is not served everywhere.
        snapshots.retain(|snapshot| snapshot.regions.iter().any(|slug| slug == region));
        Ok(snapshots)
    }

    /// Cuts a snapshot. If the error is uncertain, look for its name among the volume's.
    pub async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, ApiError> {
        let call = Call::post(["volumes", &wanted.volume_id, "snapshots"], wanted);
        Ok(self.read::<SnapshotAnswer>(call).await?.snapshot)
    }

    /// Deletes a volume's snapshot; gone is success. By the address that has no snapshots of droplets.
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), ApiError> {
        found(self.done(Call::delete(["volumes", "snapshots", id])).await).map(|_| ())
    }

    /// All droplets, over all pages.
    pub async fn droplets(&self) -> Result<Vec<Droplet>, ApiError> {
        self.all(Call::get(["droplets"])).await
    }

    /// One droplet.
    pub async fn droplet(&self, id: u64) -> Result<Option<Droplet>, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            droplet: Droplet,
        }
        let call = Call::get(["droplets", &id.to_string()]);
        Ok(found(self.read::<Answer>(call).await)?.map(|answer| answer.droplet))
    }

    /// Begins to attach, detach or resize; [`crate::Attachments`] does it to the end.
    pub async fn start_action(&self, volume: &str, action: &VolumeAction) -> Result<Action, ApiError> {
        Ok(self.read::<ActionAnswer>(Call::post(["volumes", volume, "actions"], action)).await?.action)
    }

    /// One action of a volume.
    pub async fn action(&self, volume: &str, id: u64) -> Result<Option<Action>, ApiError> {
        let call = Call::get(["volumes", volume, "actions", &id.to_string()]);
        Ok(found(self.read::<ActionAnswer>(call).await)?.map(|answer| answer.action))
    }

    /// The newest actions of a volume, one page of them; `None` if there is no such volume.
    pub async fn actions(&self, volume: &str) -> Result<Option<Vec<Action>>, ApiError> {
        found(self.page(Call::get(["volumes", volume, "actions"]), 1).await)
            .map(|page| page.map(|page| page.items))
    }

    /// Tags a volume; makes the tag if there is none. Tagged already is success.
    pub async fn tag_volume(&self, id: &str, tag: &str) -> Result<(), ApiError> {
        let resources = json!({ "resources": [{ "resource_id": id, "resource_type": "volume" }] });
        let assign = || Call::post(["tags", tag, "resources"], &resources).repeatable();
        match self.done(assign()).await {
            Err(error) if error.kind() == Kind::NotFound => {}
            other => return other,
        }
        self.done(Call::post(["tags"], &json!({ "name": tag })).repeatable()).await?;
        self.done(assign()).await
    }
}

#[derive(Deserialize)]
struct VolumeAnswer {
    volume: Volume,
}

#[derive(Deserialize)]
struct SnapshotAnswer {
    snapshot: Snapshot,
}

#[derive(Deserialize)]
struct ActionAnswer {
    action: Action,
}

/// What the API says is not there is `None`.
fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
