//! `wharf driver digitalocean orphans`: lists volumes that a driver created and that no PersistentVolume references.
//! Read-only.
//!
//! A volume counts as created by a driver if it has the driver's description or the requested tag. The operator decides
//! whether to delete it: another cluster may use it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::json;
use wharf_cluster::{Cluster, ConnectOptions, WatchOptions};
use wharf_driver_digitalocean::api::Volume;
use wharf_driver_digitalocean::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME};
use wharf_model::PersistentVolume;

use super::flags::{ApiArgs, MetadataNeeds};
use crate::output::{Format, Report, Table, or_dash};

/// List volumes that the driver created and that no PersistentVolume references; changes nothing
#[derive(Debug, clap::Args)]
pub(super) struct OrphansArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// List all volumes with this tag instead of those that the driver created
    #[arg(long, value_name = "TAG")]
    do_tag: Option<String>,
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", conflicts_with = "no_cluster")]
    kubeconfig: Option<PathBuf>,
    /// Do not connect to a cluster; list volumes that are not attached to a droplet
    #[arg(long)]
    no_cluster: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

pub(super) async fn run(args: OrphansArgs) -> anyhow::Result<()> {
    let OrphansArgs { api, do_tag, kubeconfig, no_cluster, output } = args;
    let Some(client) = api.client()? else {
        bail!("no API token: set --token-file or DIGITALOCEAN_ACCESS_TOKEN")
    };
    let location = api.location(MetadataNeeds::new(true, None, api.region.as_deref()), None).await?;
    let known = match no_cluster {
        true => None,
        false => {
            Some(cluster_volume_handles(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?)
        }
    };
    let volumes = client.volumes(&location.region).await?;
    let orphans = orphans(&volumes, do_tag.as_deref(), known.as_ref());
    let mut table = Table::new(&["NAME", "ID", "GIB", "DROPLET", "CREATED"]);
    for volume in &orphans {
        let droplet = volume.droplet_ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        table.row([
            volume.name.clone(),
            volume.id.clone(),
            volume.size_gigabytes.to_string(),
            or_dash(droplet),
            or_dash(volume.created_at.clone()),
        ]);
    }
    let listed: Vec<_> = orphans
        .iter()
        .map(|volume| {
            json!({
                "name": volume.name, "id": volume.id, "sizeGigabytes": volume.size_gigabytes,
                "dropletIds": volume.droplet_ids, "createdAt": volume.created_at, "tags": volume.tags,
            })
        })
        .collect();
    Report::list(json!({ "volumes": listed }), table).print(output)?;
    Ok(())
}

/// Handles of the cluster's PersistentVolumes of this driver, under either of its names.
async fn cluster_volume_handles(options: &ConnectOptions) -> anyhow::Result<BTreeSet<String>> {
    let cluster = Cluster::connect(options).await?;
    let listed = cluster
        .list::<PersistentVolume>(&WatchOptions::default())
        .await
        .context("failed to list PersistentVolumes")?;
    // A PersistentVolume that cannot be parsed could reference any volume.
    if !listed.undecodable.is_empty() {
        bail!(
            "{} PersistentVolumes cannot be parsed, so no volume can be identified as an orphan",
            listed.undecodable.len()
        );
    }
    let ours = |volume: &PersistentVolume| {
        volume.is_for_driver(DRIVER_NAME) || volume.is_for_driver(LEGACY_DRIVER_NAME)
    };
    let handles = listed.items.into_iter().filter(ours).filter_map(|volume| volume.spec.csi);
    Ok(handles.map(|csi| csi.volume_handle).collect())
}

/// The orphans among the volumes. Without a cluster, these are the volumes that are not attached.
fn orphans<'a>(
    volumes: &'a [Volume],
    tag: Option<&str>,
    known: Option<&BTreeSet<String>>,
) -> Vec<&'a Volume> {
    let made_by_driver = |volume: &Volume| match tag {
        Some(tag) => volume.tags.iter().any(|found| found == tag),
        None => volume.description == DESCRIPTION,
    };
    let is_orphan = |volume: &Volume| match known {
        Some(known) => !known.contains(&volume.id),
        None => volume.droplet_ids.is_empty(),
    };
    let mut found: Vec<&Volume> =
        volumes.iter().filter(|volume| made_by_driver(volume) && is_orphan(volume)).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[cfg(test)]
mod tests {
    use wharf_driver_digitalocean::api::Region;

    use super::*;

    #[test]
    fn orphans_are_driver_volumes_without_reference_or_attachment() {
        let volume = |id: &str, description: &str, tags: &[&str], droplet_ids: &[u64]| Volume {
            id: id.into(),
            name: id.into(),
            region: Region { slug: "nyc3".into() },
            droplet_ids: droplet_ids.to_vec(),
            size_gigabytes: 1,
            description: description.into(),
            created_at: String::new(),
            filesystem_type: String::new(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        let volumes = [
            volume("kept", DESCRIPTION, &["k8s"], &[]),
            volume("attached", DESCRIPTION, &[], &[7]),
            volume("lost", DESCRIPTION, &["k8s"], &[]),
            volume("foreign", "a disk of mine", &[], &[]),
            volume("tagged", "", &["k8s"], &[]),
        ];
        let known: BTreeSet<String> = ["kept".to_owned()].into();
        let names =
            |tag, known| orphans(&volumes, tag, known).iter().map(|v| v.id.as_str()).collect::<Vec<_>>();
        assert_eq!(names(None, Some(&known)), ["attached", "lost"]);
        assert_eq!(names(Some("k8s"), Some(&known)), ["lost", "tagged"]);
        assert_eq!(names(None, None), ["kept", "lost"]);
    }
}
