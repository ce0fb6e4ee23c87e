//! Compares VolumeAttachments with the driver's ListVolumes, for drivers that report published nodes. This module only
//! finds differences: the attacher then calls the driver again for such an attachment, whatever its status says.
//!
//! Guarantee: only existing attachments are acted on, and only as they request. Volumes that the driver lists without
//! an attachment are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tonic::Status;
use wharf_csi::v1;
use wharf_model::migration::Plugin;
use wharf_model::volume::CsiVolumeSource;

use super::view::Subject;
use crate::driver::Driver;
use crate::list_pages::ListPages;

/// The state that a VolumeAttachment records, and the resource version at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedAttachment {
    pub(super) subject: Subject,
    pub(super) attachment: String,
    pub(super) version: String,
    pub(super) handle: String,
    pub(super) node_id: String,
    pub(super) attached: bool,
}

/// The IDs of the published nodes by volume handle; `None` if the driver lists the volume without a status.
pub(super) type Published = BTreeMap<String, Option<BTreeSet<String>>>;

/// The attachments whose recorded state differs from the driver's list.
pub(super) fn differing<'a>(
    recorded: &'a [RecordedAttachment],
    published: &Published,
) -> Vec<&'a RecordedAttachment> {
    let differs = |recorded: &&RecordedAttachment| match published.get(&recorded.handle) {
        Some(None) => false,
        Some(Some(nodes)) => nodes.contains(&recorded.node_id) != recorded.attached,
        None => recorded.attached,
    };
    recorded.iter().filter(differs).collect()
}

/// The handle that the driver lists for a volume. That of a migrated in-tree volume may be incomplete; if it cannot be
/// completed, the attachment is not compared.
pub(super) fn listed_handle(
    csi: &CsiVolumeSource,
    migrated_from: Option<Plugin>,
    node_id: &str,
) -> Option<String> {
    let handle = &csi.volume_handle;
    let Some(plugin) = migrated_from else { return Some(handle.clone()) };
    plugin
        .repair_handle(handle, node_id)
        .inspect_err(|error| {
            tracing::warn!(volume_handle = handle, node = node_id, %error, "failed to complete volume handle");
        })
        .ok()
}

/// All volumes that the driver lists, or an error: a partial list proves nothing.
pub(super) async fn list(driver: &Driver, timeout: Duration, max_entries: i32) -> Result<Published, Status> {
    let mut listing = Listing::default();
    let mut starting_token = String::new();
    loop {
        let request = v1::ListVolumesRequest { max_entries, starting_token };
        // Each page has its own timeout, or a long list could never complete.
        let call = driver.controller("ListVolumes", timeout, |mut client| async move {
            client.list_volumes(request).await
        });
        match listing.add(call.await?)? {
            Some(next) => starting_token = next,
            None => return Ok(listing.published),
        }
    }
}

/// The volumes of the pages received so far.
#[derive(Default)]
struct Listing {
    published: Published,
    pages: ListPages,
}

impl Listing {
    /// Adds a page and returns the token of the next one.
    fn add(&mut self, page: v1::ListVolumesResponse) -> Result<Option<String>, Status> {
        for entry in page.entries {
            let Some(volume) = entry.volume else { continue };
            let nodes = entry.status.map(|status| status.published_node_ids.into_iter().collect());
            self.published.insert(volume.volume_id, nodes);
        }
        let next = self.pages.after(page.next_token, self.published.len());
        next.map_err(|error| Status::internal(format!("ListVolumes {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(handle: &str, node_id: &str, attached: bool) -> RecordedAttachment {
        RecordedAttachment {
            subject: Subject::Volume(handle.into()),
            attachment: format!("{handle}-{node_id}"),
            version: "1".into(),
            handle: handle.into(),
            node_id: node_id.into(),
            attached,
        }
    }

    /// sidecars.md 1.2 "Reconcile".
    #[test]
    fn differing_attachments_are_found() {
        let nodes = |ids: &[&str]| Some(ids.iter().map(|&id| id.to_owned()).collect());
        let published = Published::from([
            ("h1".into(), nodes(&["n1"])),
            ("h2".into(), nodes(&[])),
            ("h3".into(), None),
            ("unattached".into(), nodes(&["n1", "n2"])),
        ]);
        for (handle, node, attached, differs) in [
            ("h1", "n1", true, false),
            ("h1", "n1", false, true),
            ("h1", "n2", true, true),
            ("h1", "n2", false, false),
            ("h2", "n1", true, true),
            ("h2", "n1", false, false),
            // Listed without nodes: nothing to compare.
            ("h3", "n1", true, false),
            ("h3", "n1", false, false),
            // Not listed: published nowhere.
            ("h4", "n1", true, true),
            ("h4", "n1", false, false),
        ] {
            let recorded = [recorded(handle, node, attached)];
            assert_eq!(!differing(&recorded, &published).is_empty(), differs, "{handle} {node} {attached}");
        }
        assert!(differing(&[], &published).is_empty());
    }

    #[test]
    fn entries_of_all_pages_are_combined() {
        let entry = |id: &str, nodes: Option<&[&str]>| v1::list_volumes_response::Entry {
            volume: Some(v1::Volume { volume_id: id.into(), ..v1::Volume::default() }),
            status: nodes.map(|nodes| v1::list_volumes_response::VolumeStatus {
                published_node_ids: nodes.iter().map(|&node| node.to_owned()).collect(),
                ..Default::default()
            }),
        };
        let page =
            |entries, next_token: &str| v1::ListVolumesResponse { entries, next_token: next_token.into() };
        let mut listing = Listing::default();
        let first = vec![entry("a", Some(&["n1", "n2"])), v1::list_volumes_response::Entry::default()];
        assert_eq!(listing.add(page(first, "1")).unwrap().as_deref(), Some("1"));
        assert_eq!(listing.add(page(vec![entry("b", None)], "")).unwrap(), None);
        let nodes = ["n1".to_owned(), "n2".to_owned()].into();
        assert_eq!(listing.published, Published::from([("a".into(), Some(nodes)), ("b".into(), None)]));
    }

    /// `--max-entries=1` has this effect.
    #[test]
    fn pages_of_one_volume_each_are_accepted() {
        let mut listing = Listing::default();
        for id in 0..20_000 {
            let volume = v1::Volume { volume_id: id.to_string(), ..v1::Volume::default() };
            let entry = v1::list_volumes_response::Entry { volume: Some(volume), ..Default::default() };
            let page = v1::ListVolumesResponse { entries: vec![entry], next_token: format!("{id}") };
            assert_eq!(listing.add(page).unwrap(), Some(id.to_string()));
        }
    }

    #[test]
    fn repeated_next_token_is_an_error() {
        let page = |next_token: &str| v1::ListVolumesResponse {
            next_token: next_token.into(),
            ..v1::ListVolumesResponse::default()
        };
        let mut listing = Listing::default();
        assert!(listing.add(page("a")).is_ok() && listing.add(page("b")).is_ok());
        let error = listing.add(page("a")).unwrap_err();
        assert_eq!(error.message(), "ListVolumes returned next_token \"a\" twice; the list never ends");
    }

    /// sidecars.md 1.0 "In-tree migration": RepairVolumeHandle.
    #[test]
    fn handle_of_migrated_volume_is_completed_from_node_id() {
        let of =
            |handle: &str| CsiVolumeSource { volume_handle: handle.into(), ..CsiVolumeSource::default() };
        let incomplete = of("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
        let node = "projects/p/zones/us-east1-b/instances/i";
        let complete = Some("projects/p/zones/us-east1-b/disks/d".to_owned());
        assert_eq!(listed_handle(&incomplete, Some(Plugin::GcePd), node), complete);
        assert_eq!(listed_handle(&incomplete, Some(Plugin::GcePd), "n"), None);
        assert_eq!(listed_handle(&incomplete, None, node), Some(incomplete.volume_handle.clone()));
        assert_eq!(listed_handle(&of("vol-1"), Some(Plugin::AwsEbs), "n").as_deref(), Some("vol-1"));
    }
}
