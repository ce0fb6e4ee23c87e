//! The SDK's controller traits on DigitalOcean: volumes, listings, attachments, expansion, snapshots, health.
//!
//! The controller stores no state that the API has; only listings are cached for some seconds, so that their pages are
//! consistent. The same name is always the same volume, even after a call whose effect is unknown. Errors distinguish
//! temporary from permanent failures.

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
use listing::ListingCache;

/// Options of the controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// The driver's name, the prefix of the publish context's keys.
    pub driver_name: String,
    /// The region whose volumes are served.
    pub region: String,
    /// A tag for every volume, if configured.
    pub tag: Option<String>,
}

/// The controller service for one region.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    attachments: Attachments,
    account: Account,
    keys: PublishKeys,
    region: String,
    tag: Option<String>,
    cache: Arc<ListingCache>,
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
        Self { client, attachments, account, keys, region, tag, cache: Arc::default() }
    }

    fn tags(&self) -> Vec<String> {
        self.tag.clone().into_iter().collect()
    }
}

/// Converts a volume. The API reports neither the snapshot it was restored from nor its volume context.
fn to_sdk_volume(volume: &Volume) -> wharf_driver::backend::Volume {
    wharf_driver::backend::Volume {
        id: volume.id.clone(),
        capacity: bytes(volume.size_gigabytes),
        topology: vec![topology_of(&volume.region.slug)],
        published_nodes: volume.droplet_ids.iter().map(u64::to_string).collect(),
        ..Default::default()
    }
}

/// Converts a snapshot; fails if its creation time is invalid.
fn to_sdk_snapshot(
    snapshot: &api::Snapshot,
) -> Result<wharf_driver::backend::Snapshot, wharf_driver::backend::BackendError> {
    let created: jiff::Timestamp = snapshot.created_at.parse().map_err(|error| {
        wharf_driver::backend::BackendError::Internal(format!(
            "snapshot {} has an invalid creation time {:?}: {error}",
            snapshot.id, snapshot.created_at
        ))
    })?;
    Ok(wharf_driver::backend::Snapshot {
        id: snapshot.id.clone(),
        source: snapshot.resource_id.clone(),
        size: bytes(snapshot.min_disk_size),
        created: created.into(),
        // The API responds once the snapshot is ready.
        ready_to_use: true,
        group: None,
        topology: snapshot.regions.iter().map(|region| topology_of(region)).collect(),
    })
}
