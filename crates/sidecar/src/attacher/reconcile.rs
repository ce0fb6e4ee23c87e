//! Compares VolumeAttachments with the driver's ListVolumes, for drivers that report published nodes. This module only
//! finds differences: the attacher then calls the driver again for such an attachment, whatever its status says.
//!
//! Guarantee: only existing attachments are acted on, and only as they request. Volumes that the driver lists without
//! an attachment are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tonic::Status;
use wharf_csi::v1;

use super::view::Subject;
use crate::driver::Driver;

/// The state that an attachment records, at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedAttachment {
    pub(super) subject: Subject,
    pub(super) attachment: String,
    pub(super) version: String,
    pub(super) handle: String,
    pub(super) node_id: String,
    pub(super) attached: bool,
}

/// The published nodes by volume handle. `None`: the driver lists the volume without its nodes.
pub(super) type Published = BTreeMap<String, Option<BTreeSet<String>>>;

/// The attachments that differ from the driver's list.
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

/// All volumes that the driver lists, or an error: a partial list proves nothing.
pub(super) async fn list(driver: &Driver, timeout: Duration, max_entries: i32) -> Result<Published, Status> {
    let mut published = Published::new();
    let mut starting_token = String::new();
    loop {
        let request = v1::ListVolumesRequest { max_entries, starting_token: starting_token.clone() };
        // Each page has its own timeout, or a long list could never complete.
        let call = driver.controller("ListVolumes", timeout, |mut client| async move {
            client.list_volumes(request).await
        });
        let page = call.await?;
        add(&mut published, page.entries);
        if page.next_token.is_empty() {
            return Ok(published);
        }
        if page.next_token == starting_token {
            return Err(Status::internal(format!(
                "ListVolumes does not advance: next_token {starting_token:?} is repeated"
            )));
        }
        starting_token = page.next_token;
    }
}

fn add(published: &mut Published, entries: Vec<v1::list_volumes_response::Entry>) {
    for entry in entries {
        let Some(volume) = entry.volume else { continue };
        let nodes = entry.status.map(|status| status.published_node_ids.into_iter().collect());
        published.insert(volume.volume_id, nodes);
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

    /// sidecars.md 1.2 "Reconcile". User pain 21: only what an attachment requests is ever done.
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
        let mut published = Published::new();
        add(
            &mut published,
            vec![entry("a", Some(&["n1", "n2"])), v1::list_volumes_response::Entry::default()],
        );
        add(&mut published, vec![entry("b", None)]);
        let nodes = ["n1".to_owned(), "n2".to_owned()].into();
        assert_eq!(published, Published::from([("a".into(), Some(nodes)), ("b".into(), None)]));
    }
}
