//! DigitalOcean behind the SDK's traits: volumes, listings, attachments, expansion, snapshots, health.
//!
//! What it promises: nothing is remembered that the API knows (only listings, for some seconds, so that their pages
//! fit together); the same name is the same volume, also after a call of which nobody knows whether it had its
//! effect; an error says what will pass by itself and what will not.

mod health;
mod listing;
mod parameters;
mod plan;
mod publishing;
mod snapshots;
mod volumes;

use std::sync::Arc;

use crate::actions::Attachments;
use crate::api::Volume;
use crate::client::Client;
use crate::names::{PublishKeys, topology_of};
use crate::size::bytes;
use crate::{Account, api};
use listing::Recent;

/// How the controller half is set up.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// The driver's name, of which the publish context's keys are made.
    pub driver_name: String,
    /// The region whose volumes are served.
    pub region: String,
    /// A tag for every volume, where one is wanted.
    pub tag: Option<String>,
}

/// DigitalOcean, as the SDK wants it.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    attachments: Attachments,
    account: Account,
    keys: PublishKeys,
    region: String,
    tag: Option<String>,
    recent: Arc<Recent>,
}

impl Controller {
    /// Makes no request.
    pub fn new(
        client: Client,
        attachments: Attachments,
        account: Account,
        options: ControllerOptions,
    ) -> Self {
        let ControllerOptions { driver_name, region, tag } = options;
        let keys = PublishKeys::of(&driver_name);
        Self { client, attachments, account, keys, region, tag, recent: Arc::default() }
    }

    fn tags(&self) -> Vec<String> {
        self.tag.clone().into_iter().collect()
    }
}

/// A volume as the SDK knows it. The API does not say what it was restored from, nor its volume context.
fn described(volume: &Volume) -> wharf_driver::backend::Volume {
    wharf_driver::backend::Volume {
        id: volume.id.clone(),
        capacity: bytes(volume.size_gigabytes),
        topology: vec![topology_of(&volume.region.slug)],
        published_nodes: volume.droplet_ids.iter().map(u64::to_string).collect(),
        ..Default::default()
    }
}

/// A snapshot as the SDK knows it; an error if the API's time is none.
fn described_snapshot(
    snapshot: &api::Snapshot,
) -> Result<wharf_driver::backend::Snapshot, wharf_driver::backend::BackendError> {
    let created: jiff::Timestamp = snapshot.created_at.parse().map_err(|error| {
        wharf_driver::backend::BackendError::Internal(format!(
            "snapshot {} was cut at {:?}, says the API, which is no time: {error}",
            snapshot.id, snapshot.created_at
        ))
    })?;
    Ok(wharf_driver::backend::Snapshot {
        id: snapshot.id.clone(),
        source: snapshot.resource_id.clone(),
        size: bytes(snapshot.min_disk_size),
        created: created.into(),
        // The API answers when it is.
        ready: true,
        group: None,
        topology: snapshot.regions.iter().map(|region| topology_of(region)).collect(),
    })
}
