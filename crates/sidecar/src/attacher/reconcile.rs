//! Compares what attachments say with what the driver lists, for drivers that tell where volumes are published.
//! Nothing is done here: where the two differ, the attachment is looked at once more as if it said nothing.
//!
//! Promise: only attachments that are there are acted on, and only as they ask. What the driver lists and no
//! attachment speaks of is not ours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tonic::Status;
use wharf_csi::v1;

use super::view::Subject;
use crate::driver::Driver;

/// What an attachment says, as of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) subject: Subject,
    pub(super) attachment: String,
    pub(super) version: String,
    pub(super) handle: String,
    pub(super) node_id: String,
    pub(super) attached: bool,
}

/// Where volumes are published: the nodes by the volume's handle. `None`: the driver lists the volume and does
/// not say.
pub(super) type Published = BTreeMap<String, Option<BTreeSet<String>>>;

/// The attachments that say another thing than the driver.
pub(super) fn differing<'a>(said: &'a [Said], published: &Published) -> Vec<&'a Said> {
    let differs = |said: &&Said| match published.get(&said.handle) {
        Some(None) => false,
        Some(Some(nodes)) => nodes.contains(&said.node_id) != said.attached,
        None => said.attached,
    };
    said.iter().filter(differs).collect()
}

/// All the driver lists, or an error: of half a list nothing follows.
pub(super) async fn list(driver: &Driver, timeout: Duration, max_entries: i32) -> Result<Published, Status> {
    let mut published = Published::new();
    let mut starting_token = String::new();
    loop {
        let request = v1::ListVolumesRequest { max_entries, starting_token: starting_token.clone() };
        // Each page has its own time, or a long list would never end.
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
                "ListVolumes gives the same page for ever: next_token is {starting_token:?} again"
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

    fn said(handle: &str, node_id: &str, attached: bool) -> Said {
        Said {
            subject: Subject::Volume(handle.into()),
            attachment: format!("{handle}-{node_id}"),
            version: "1".into(),
            handle: handle.into(),
            node_id: node_id.into(),
            attached,
        }
    }

    /// sidecars.md 1.2 "Reconcile". User pain 21: only what an attachment asks for is ever done.
    #[test]
    fn differences() {
        let nodes = |ids: &[&str]| Some(ids.iter().map(|&id| id.to_owned()).collect());
        let published = Published::from([
            ("h1".into(), nodes(&["n1"])),
            ("h2".into(), nodes(&[])),
            ("h3".into(), None),
            ("nobody's".into(), nodes(&["n1", "n2"])),
        ]);
        for (handle, node, attached, differs) in [
            ("h1", "n1", true, false),
            ("h1", "n1", false, true),
            ("h1", "n2", true, true),
            ("h1", "n2", false, false),
            ("h2", "n1", true, true),
            ("h2", "n1", false, false),
            // Listed without saying where: no reason to do anything.
            ("h3", "n1", true, false),
            ("h3", "n1", false, false),
            // Not listed: as if published nowhere.
            ("h4", "n1", true, true),
            ("h4", "n1", false, false),
        ] {
            let said = [said(handle, node, attached)];
            assert_eq!(!differing(&said, &published).is_empty(), differs, "{handle} {node} {attached}");
        }
        assert!(differing(&[], &published).is_empty());
    }

    #[test]
    fn entries_of_pages_come_together() {
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
