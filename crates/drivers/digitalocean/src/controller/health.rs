//! Health: what the API tells of a volume and of the droplet that has it.

use async_trait::async_trait;
use wharf_driver::backend::{BackendError, Health, HealthIssue, HealthStatus, StorageIssue};

use super::Controller;
use crate::api::{Droplet, Volume};

#[async_trait]
impl Health for Controller {
    async fn volume_health(&self, id: &str) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        // Of all volumes one after the other it is asked after a listing, which tells as much.
        let volume = match self.recent.volume(id) {
            Some(volume) => volume,
            None => match self.client.volume(id).await? {
                Some(volume) => volume,
                None => return Ok(None),
            },
        };
        let Some(id) = volume.droplet_ids.first().copied() else { return Ok(Some(issues(&volume, None))) };
        // One listing tells of all that are well. What it says against one may be old: that is asked for by itself.
        let late = self.recent_droplet(id).await?;
        let found = issues(&volume, Some((id, late.as_ref())));
        if found.is_empty() {
            return Ok(Some(found));
        }
        let droplet = self.client.droplet(id).await?;
        Ok(Some(issues(&volume, Some((id, droplet.as_ref())))))
    }

    async fn storage_health(&self) -> Result<Vec<StorageIssue>, BackendError> {
        Ok(self.account.check().await.issues())
    }
}

/// What is wrong with a volume. `droplet` is the one that has it, and what the API knows of that.
fn issues(volume: &Volume, droplet: Option<(u64, Option<&Droplet>)>) -> Vec<HealthIssue> {
    let issue =
        |status, reason: &str, message: String| HealthIssue { status, reason: reason.to_owned(), message };
    let mut issues = Vec::new();
    if volume.droplet_ids.len() > 1 {
        let message =
            format!("it is attached to droplets {:?}; detach it from all but one", volume.droplet_ids);
        issues.push(issue(HealthStatus::Degraded, "AttachedTwice", message));
    }
    issues.extend(droplet.and_then(|(id, found)| match found {
        None => Some(issue(
            HealthStatus::Inaccessible,
            "DropletGone",
            format!("it is attached to droplet {id}, which does not exist; detach it"),
        )),
        Some(droplet) if !droplet.volume_ids.contains(&volume.id) => Some(issue(
            HealthStatus::Degraded,
            "AttachmentMismatch",
            format!(
                "it is attached to droplet {id}, which does not know of it; detach it and attach it again"
            ),
        )),
        Some(droplet) if droplet.status == "off" || droplet.status == "archive" => Some(issue(
            HealthStatus::Inaccessible,
            "DropletOff",
            format!("droplet {id} is {}; start it, or detach the volume", droplet.status),
        )),
        Some(_) => None,
    }));
    issues
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Region;

    #[test]
    fn what_is_wrong_has_its_word() {
        let region = || Region { slug: "nyc3".into() };
        let volume = |droplet_ids: &[u64]| Volume {
            id: "v".into(),
            name: "n".into(),
            region: region(),
            droplet_ids: droplet_ids.to_vec(),
            size_gigabytes: 1,
            description: String::new(),
            created_at: String::new(),
            filesystem_type: String::new(),
            tags: vec![],
        };
        let droplet = |status: &str, volumes: &[&str]| Droplet {
            id: 7,
            name: "d".into(),
            status: status.into(),
            region: region(),
            volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
        };
        let words = |volume: &Volume, droplet: Option<(u64, Option<&Droplet>)>| {
            issues(volume, droplet).into_iter().map(|issue| issue.reason).collect::<Vec<_>>().join(" ")
        };
        let (active, off, other) =
            (droplet("active", &["v"]), droplet("off", &["v"]), droplet("active", &["w"]));
        for (droplets, droplet, expected) in [
            (&[][..], None, ""),
            (&[7], Some((7, Some(&active))), ""),
            (&[7], Some((7, Some(&off))), "DropletOff"),
            (&[7], Some((7, Some(&other))), "AttachmentMismatch"),
            (&[7], Some((7, None)), "DropletGone"),
            (&[7, 8], Some((7, Some(&active))), "AttachedTwice"),
        ] {
            assert_eq!(words(&volume(droplets), droplet), expected, "{droplets:?} {droplet:?}");
        }
    }
}
