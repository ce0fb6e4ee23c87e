//! A minimal typed API client: one method per request that the driver needs.
//!
//! Every call ends within its timeout ([`ClientOptions::timeout`]). It is retried only where that is safe
//! ([`retry`]), stays within the API's rate limits and leaves a reserve for detaches ([`budget`]). A missing object
//! is `None` (for a delete: success), but only if the API itself reported it as missing.

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

pub use error::{ApiError, ApiErrorKind, UnprocessableReason};
pub use token::{Token, TokenError};

#[cfg(test)]
pub(crate) use error::{CallName, classify};
pub(crate) use wire::{WireError, get_text};

/// The URL of DigitalOcean's API.
pub const DEFAULT_URL: &str = "https://api.digitalocean.com/";
/// DigitalOcean's limit of requests per minute and token.
pub const REQUESTS_PER_MINUTE: u32 = 250;

/// Options of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `https://api.digitalocean.com/`, or an `http://` URL of a fake.
    pub url: String,
    /// The API token.
    pub token: Token,
    /// The User-Agent header.
    pub user_agent: String,
    /// Maximum number of requests per minute.
    pub requests_per_minute: u32,
    /// Timeout of one call, including retries and waiting for the rate limit.
    pub timeout: Duration,
}

impl ClientOptions {
    /// DigitalOcean's limits, and a timeout of 30 seconds per call.
    pub fn new(url: impl Into<String>, token: Token) -> Self {
        Self {
            url: url.into(),
            token,
            user_agent: concat!("wharf/", env!("CARGO_PKG_VERSION")).to_owned(),
            requests_per_minute: REQUESTS_PER_MINUTE,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is invalid.
    #[error("{url:?} is not a valid API URL: {reason}")]
    Url {
        /// The given URL.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The host's root certificates cannot be read.
    #[error("failed to read the host's root certificates: {0}")]
    Roots(std::io::Error),
}

/// An API client. Cheap to clone; clones share connections and rate limit.
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
    timeout: Duration,
}

/// Items per page; the API's maximum.
pub(crate) const PER_PAGE: usize = 200;

impl Client {
    /// Makes no request.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let ClientOptions { url, token, user_agent, requests_per_minute: requests_a_minute, timeout } =
            options;
        let wire = Wire::new(&url, &user_agent)?;
        let budget = Mutex::new(Budget::new(requests_a_minute));
        Ok(Self { shared: Arc::new(Shared { wire, token, budget, timeout }), priority: Priority::Normal })
    }

    /// The same client, with access to the rate limit's reserve.
    pub fn urgent(&self) -> Self {
        Self { shared: self.shared.clone(), priority: Priority::Urgent }
    }

    /// The account of the token.
    pub async fn account(&self) -> Result<Account, ApiError> {
        #[derive(Deserialize)]
        struct Response {
            account: Account,
        }
        Ok(self.read::<Response>(Call::get(["account"])).await?.account)
    }

    /// How many volumes the account has in all regions.
    pub async fn volume_count(&self) -> Result<u64, ApiError> {
        #[derive(Deserialize)]
        struct Response {
            meta: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            total: u64,
        }
        let call = Call::get(["volumes"]).query("page", "1").query("per_page", "1");
        Ok(self.read::<Response>(call).await?.meta.total)
    }

    /// One volume.
    pub async fn volume(&self, id: &str) -> Result<Option<Volume>, ApiError> {
        Ok(found(self.read::<VolumeResponse>(Call::get(["volumes", id])).await)?
            .map(|response| response.volume))
    }

    /// The volumes with that name in the region; the API guarantees at most one.
    pub async fn volumes_named(&self, name: &str, region: &str) -> Result<Vec<Volume>, ApiError> {
        self.all(Call::get(["volumes"]).query("name", name).query("region", region)).await
    }

    /// All volumes of the region, over all pages.
    pub async fn volumes(&self, region: &str) -> Result<Vec<Volume>, ApiError> {
        self.all(Call::get(["volumes"]).query("region", region)).await
    }

    /// Creates a volume. If the error is uncertain, search for it by name.
    pub async fn create_volume(&self, wanted: &NewVolume) -> Result<Volume, ApiError> {
        Ok(self.read::<VolumeResponse>(Call::post(["volumes"], wanted)).await?.volume)
    }

    /// Deletes a volume. Succeeds if it does not exist; an attached volume is [`ApiErrorKind::Conflict`].
    pub async fn delete_volume(&self, id: &str) -> Result<(), ApiError> {
        found(self.done(Call::delete(["volumes", id])).await).map(|_| ())
    }

    /// The snapshots of one volume, over all pages; `None` if there is no such volume.
    pub async fn snapshots_of(&self, volume: &str) -> Result<Option<Vec<Snapshot>>, ApiError> {
        found(self.all(Call::get(["volumes", volume, "snapshots"])).await)
    }

    /// One snapshot of a volume; a droplet's snapshot is `None`.
    pub async fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, ApiError> {
        let response = found(self.read::<SnapshotResponse>(Call::get(["snapshots", id])).await)?;
        Ok(response.map(|response| response.snapshot).filter(|snapshot| snapshot.resource_type == "volume"))
    }

    /// All snapshots of volumes in the region, over all pages.
    pub async fn snapshots(&self, region: &str) -> Result<Vec<Snapshot>, ApiError> {
        let call = Call::get(["snapshots"]).query("resource_type", "volume");
        let mut snapshots: Vec<Snapshot> = self.all(call).await?;
        // Filtered here, because not every server supports a region in the query.
        snapshots.retain(|snapshot| snapshot.regions.iter().any(|slug| slug == region));
        Ok(snapshots)
    }

    /// Cuts a snapshot. If the error is uncertain, search for its name among the volume's snapshots.
    pub async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, ApiError> {
        let call = Call::post(["volumes", &wanted.volume_id, "snapshots"], wanted);
        Ok(self.read::<SnapshotResponse>(call).await?.snapshot)
    }

    /// Deletes a volume's snapshot. Succeeds if it does not exist. Uses the path that excludes droplet snapshots.
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
        struct Response {
            droplet: Droplet,
        }
        let call = Call::get(["droplets", &id.to_string()]);
        Ok(found(self.read::<Response>(call).await)?.map(|response| response.droplet))
    }

    /// Starts to attach, detach or resize; [`crate::Attachments`] also waits for completion.
    pub async fn start_action(&self, volume: &str, action: &VolumeAction) -> Result<Action, ApiError> {
        Ok(self.read::<ActionResponse>(Call::post(["volumes", volume, "actions"], action)).await?.action)
    }

    /// One action of a volume.
    pub async fn action(&self, volume: &str, id: u64) -> Result<Option<Action>, ApiError> {
        let call = Call::get(["volumes", volume, "actions", &id.to_string()]);
        Ok(found(self.read::<ActionResponse>(call).await)?.map(|response| response.action))
    }

    /// The newest actions of a volume, one page of them; `None` if there is no such volume.
    pub async fn actions(&self, volume: &str) -> Result<Option<Vec<Action>>, ApiError> {
        found(self.page(Call::get(["volumes", volume, "actions"]), 1).await)
            .map(|page| page.map(|page| page.items))
    }

    /// Tags a volume, creating the tag if necessary. Succeeds if the volume already has the tag.
    pub async fn tag_volume(&self, id: &str, tag: &str) -> Result<(), ApiError> {
        let resources = json!({ "resources": [{ "resource_id": id, "resource_type": "volume" }] });
        let assign = || Call::post(["tags", tag, "resources"], &resources).repeatable();
        match self.done(assign()).await {
            Err(error) if error.kind() == ApiErrorKind::NotFound => {}
            other => return other,
        }
        self.done(Call::post(["tags"], &json!({ "name": tag })).repeatable()).await?;
        self.done(assign()).await
    }
}

#[derive(Deserialize)]
struct VolumeResponse {
    volume: Volume,
}

#[derive(Deserialize)]
struct SnapshotResponse {
    snapshot: Snapshot,
}

#[derive(Deserialize)]
struct ActionResponse {
    action: Action,
}

/// Maps "not found" from the API to `None`.
fn found<T>(response: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match response {
        Ok(response) => Ok(Some(response)),
        Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
