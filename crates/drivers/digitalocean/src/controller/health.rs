//! Health of a volume, from the API's view of the volume and its droplet.

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, GetStorageHealth, GetVolumeHealth, Health, HealthIssue, HealthStatus, StorageIssue,
};

use super::Controller;
use crate::api::{Droplet, Volume};

#[async_trait]
impl Health for Controller {
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        // The health monitor checks every volume after a listing, so the cache of that listing usually contains the
        // volume.
        let volume = match self.cache.volume(&request.id) {
            Some(volume) => volume,
            None => match self.client.volume(&request.id).await? {
                Some(volume) => volume,
                None => return Ok(None),
            },
        };
        let Some(id) = volume.droplet_ids.first().copied() else { return Ok(Some(issues(&volume, None))) };
        // One cached listing covers all healthy volumes. A problem in the cached listing may be outdated, so it is
        // verified with a request.
        let cached = self.cached_droplet(id).await?;
        let found = issues(&volume, Some((id, cached.as_ref())));
        if found.is_empty() {
            return Ok(Some(found));
        }
        let droplet = self.client.droplet(id).await?;
        Ok(Some(issues(&volume, Some((id, droplet.as_ref())))))
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        Ok(self.account.check().await.issues())
    }
}

/// The issues of a volume. `droplet` is the id of the droplet it is attached to, and that droplet if it exists.
fn issues(volume: &Volume, droplet: Option<(u64, Option<&Droplet>)>) -> Vec<HealthIssue> {
    let issue =
        |status, reason: &str, message: String| HealthIssue { status, reason: reason.to_owned(), message };
    let mut issues = Vec::new();
    if volume.droplet_ids.len() > 1 {
        let message = format!(
            "volume {} is attached to droplets {:?}; detach it from all but one",
            volume.id, volume.droplet_ids
        );
        issues.push(issue(HealthStatus::Degraded, "AttachedTwice", message));
    }
    issues.extend(droplet.and_then(|(id, found)| match found {
        None => Some(issue(
            HealthStatus::Inaccessible,
            "DropletGone",
            format!("volume {} is attached to droplet {id}, which does not exist; detach it", volume.id),
        )),
        Some(droplet) if !droplet.volume_ids.contains(&volume.id) => Some(issue(
            HealthStatus::Degraded,
            "AttachmentMismatch",
            format!(
                "volume {} is attached to droplet {id}, but the droplet does not list it; detach and attach it again",
                volume.id
            ),
        )),
        Some(droplet) if droplet.status == "off" || droplet.status == "archive" => Some(issue(
            HealthStatus::Inaccessible,
            "DropletOff",
            format!("droplet {id} of volume {} is {}; start the droplet, or detach the volume", volume.id, droplet.status),
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
    fn each_problem_has_its_reason() {
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
        let reasons = |volume: &Volume, droplet: Option<(u64, Option<&Droplet>)>| {
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
            assert_eq!(reasons(&volume(droplets), droplet), expected, "{droplets:?} {droplet:?}");
        }
    }
}
