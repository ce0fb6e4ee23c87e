//! Renders the state's objects as the API's JSON.

use serde_json::{Value, json};

use crate::settings::FakeSettings;
use crate::state::{Action, Droplet, Snapshot, State, Volume};
use crate::time::rfc3339;

/// Slug and name of the regions.
const REGIONS: [(&str, &str); 13] = [
    ("ams3", "Amsterdam 3"),
    ("atl1", "Atlanta 1"),
    ("blr1", "Bangalore 1"),
    ("fra1", "Frankfurt 1"),
    ("lon1", "London 1"),
    ("nyc1", "New York 1"),
    ("nyc2", "New York 2"),
    ("nyc3", "New York 3"),
    ("sfo2", "San Francisco 2"),
    ("sfo3", "San Francisco 3"),
    ("sgp1", "Singapore 1"),
    ("syd1", "Sydney 1"),
    ("tor1", "Toronto 1"),
];

/// Whether there is such a region.
pub(crate) fn is_region(slug: &str) -> bool {
    REGIONS.iter().any(|(known, _)| *known == slug)
}

pub(crate) fn region(slug: &str) -> Value {
    let name = REGIONS.iter().find(|(known, _)| *known == slug).map_or(slug, |(_, name)| name);
    json!({
        "name": name,
        "slug": slug,
        "sizes": ["s-1vcpu-1gb", "s-2vcpu-4gb", "s-4vcpu-8gb"],
        "features": ["backups", "ipv6", "metadata", "storage"],
        "available": true,
    })
}

pub(crate) fn regions() -> Vec<Value> {
    REGIONS.iter().map(|(slug, _)| region(slug)).collect()
}

pub(crate) fn volume(volume: &Volume) -> Value {
    let droplets: Vec<u64> = volume.attached.iter().map(|attached| attached.droplet).collect();
    json!({
        "id": volume.id,
        "region": region(&volume.region),
        "droplet_ids": droplets,
        "name": volume.name,
        "description": volume.description,
        "size_gigabytes": volume.size_gigabytes,
        "created_at": rfc3339(volume.created),
        "filesystem_type": volume.filesystem_type,
        "filesystem_label": volume.filesystem_label,
        "tags": volume.tags,
    })
}

pub(crate) fn snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "regions": [snapshot.region],
        "created_at": rfc3339(snapshot.created),
        "resource_id": snapshot.volume,
        "resource_type": "volume",
        "min_disk_size": snapshot.min_disk_size,
        // The billed size: often 0 at first.
        "size_gigabytes": 0.0,
        "tags": snapshot.tags,
    })
}

/// `resource_id` is null for volumes: clients decode it as an integer, and a volume's id is a UUID.
pub(crate) fn action(action: &Action) -> Value {
    json!({
        "id": action.id,
        "status": action.status.word(),
        "type": action.kind.word(),
        "started_at": rfc3339(action.started),
        "completed_at": action.ended.map(rfc3339),
        "resource_id": null,
        "resource_type": "backend",
        "region": region(&action.region),
        "region_slug": action.region,
    })
}

pub(crate) fn droplet(state: &State, droplet: &Droplet) -> Value {
    let volumes: Vec<&str> = state.volumes_of(droplet.id).map(|volume| volume.id.as_str()).collect();
    let address = |net: &str| format!("{net}.{}.{}", droplet.id / 250 % 250, droplet.id % 250 + 2);
    json!({
        "id": droplet.id,
        "name": droplet.name,
        "memory": 4096,
        "vcpus": 2,
        "disk": 80,
        "locked": state.pending().any(|action| action.kind.droplet() == Some(droplet.id)),
        "status": "active",
        "created_at": rfc3339(droplet.created),
        "features": ["droplet_agent", "private_networking"],
        "backup_ids": [],
        "snapshot_ids": [],
        "volume_ids": volumes,
        "size_slug": "s-2vcpu-4gb",
        "networks": {
            "v4": [
                { "ip_address": address("192.0"), "netmask": "255.255.0.0", "gateway": "192.0.0.1", "type": "public" },
                { "ip_address": address("10.17"), "netmask": "255.255.0.0", "gateway": "10.17.0.1", "type": "private" },
            ],
            "v6": [],
        },
        "region": region(&droplet.region),
        "tags": droplet.tags,
        "vpc_uuid": "760e09ef-dc84-11e8-981e-3cfdfeaae000",
    })
}

pub(crate) fn account(settings: &FakeSettings) -> Value {
    json!({ "account": {
        "droplet_limit": 100,
        "floating_ip_limit": 5,
        "reserved_ip_limit": 5,
        "volume_limit": settings.volume_limit,
        "email": "fake@example.com",
        "name": "Fake",
        "uuid": "b6fr89dbf6d9156cace5f3c78dc9851d957381ef",
        "email_verified": true,
        "status": "active",
        "status_message": "",
        "team": { "uuid": "5df3e3004a17e242b7c20ca6c9fc25b701a47ece", "name": "My Team" },
    } })
}

pub(crate) fn tag(state: &State, name: &str) -> Value {
    let has = |tags: &[String]| tags.iter().any(|tag| tag == name);
    let droplets = state.droplets.values().filter(|droplet| has(&droplet.tags)).count();
    let volumes = state.volumes.values().filter(|volume| has(&volume.tags)).count();
    let snapshots = state.snapshots.values().filter(|snapshot| has(&snapshot.tags)).count();
    json!({
        "name": name,
        "resources": {
            "count": droplets + volumes + snapshots,
            "droplets": { "count": droplets },
            "volumes": { "count": volumes },
            "volume_snapshots": { "count": snapshots },
        },
    })
}
