//! `wharf driver digitalocean orphans`: volumes that a driver made and that no PersistentVolume has. It only looks.
//!
//! A volume is counted as made by a driver if it has the driver's description, or the tag that is asked for. Whether
//! it can go is for people to say: another cluster may have it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::json;
use wharf_cluster::{Cluster, ConnectOptions, WatchOptions};
use wharf_driver_digitalocean::api::Volume;
use wharf_driver_digitalocean::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME};
use wharf_model::PersistentVolume;

use super::flags::{ApiArgs, Needs};
use crate::output::{Format, Report, Table, or_dash};

/// List volumes that a driver made and no PersistentVolume has; changes nothing
#[derive(Debug, clap::Args)]
pub(super) struct OrphansArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Only volumes with this tag (the one of --do-tag), whoever made them
    #[arg(long, value_name = "TAG")]
    do_tag: Option<String>,
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE", conflicts_with = "no_cluster")]
    kubeconfig: Option<PathBuf>,
    /// Ask no cluster: list the volumes that are attached nowhere
    #[arg(long)]
    no_cluster: bool,
    /// How to print
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

pub(super) async fn run(args: OrphansArgs) -> anyhow::Result<()> {
    let OrphansArgs { api, do_tag, kubeconfig, no_cluster, output } = args;
    let Some(client) = api.client()? else { bail!("a token is needed: give --token-file") };
    let place = api.place(Needs::of(true, None, api.region.as_deref()), None).await?;
    let known = match no_cluster {
        true => None,
        false => Some(known_to(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?),
    };
    let volumes = client.volumes(&place.region).await?;
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

/// Handles of all volumes of this driver, by either name, that the cluster has.
async fn known_to(options: &ConnectOptions) -> anyhow::Result<BTreeSet<String>> {
    let cluster = Cluster::connect(options).await?;
    let listed =
        cluster.list::<PersistentVolume>(&WatchOptions::default()).await.context("list PersistentVolumes")?;
    // One that cannot be read could have any of them.
    if !listed.unreadable.is_empty() {
        bail!(
            "{} PersistentVolumes cannot be understood, so no volume can be said to be nobody's",
            listed.unreadable.len()
        );
    }
    let ours = |volume: &PersistentVolume| volume.is_of(DRIVER_NAME) || volume.is_of(LEGACY_DRIVER_NAME);
    let handles = listed.items.into_iter().filter(ours).filter_map(|volume| volume.spec.csi);
    Ok(handles.map(|csi| csi.volume_handle).collect())
}

/// Which volumes are nobody's. Without a cluster only those that are attached nowhere are named.
fn orphans<'a>(
    volumes: &'a [Volume],
    tag: Option<&str>,
    known: Option<&BTreeSet<String>>,
) -> Vec<&'a Volume> {
    let made_by_driver = |volume: &Volume| match tag {
        Some(tag) => volume.tags.iter().any(|found| found == tag),
        None => volume.description == DESCRIPTION,
    };
    let nobodys = |volume: &Volume| match known {
        Some(known) => !known.contains(&volume.id),
        None => volume.droplet_ids.is_empty(),
    };
    let mut found: Vec<&Volume> =
        volumes.iter().filter(|volume| made_by_driver(volume) && nobodys(volume)).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[cfg(test)]
mod tests {
    use wharf_driver_digitalocean::api::Region;

    use super::*;

    #[test]
    fn what_is_nobodys() {
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
