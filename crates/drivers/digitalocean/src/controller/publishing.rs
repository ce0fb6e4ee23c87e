//! Attach and detach. [`crate::Attachments`] serializes the operations.

use std::collections::BTreeMap;

use async_trait::async_trait;
use wharf_driver::backend::{BackendError, PublishError, PublishVolume, Publishing, UnpublishVolume};

use super::Controller;
use crate::errors;
use crate::size::bytes;

#[async_trait]
impl Publishing for Controller {
    async fn publish(&self, request: &PublishVolume) -> Result<BTreeMap<String, String>, PublishError> {
        let PublishVolume { id, node, .. } = request;
        if request.read_only {
            return Err(PublishError::Incompatible(format!(
                "volume {id} can only be attached read-write; a pod can still mount it read-only"
            )));
        }
        let Some(droplet) = droplet_of(node) else {
            return Err(PublishError::NotFound(format!("there is no droplet {node:?}: its id is a number")));
        };
        let volume = self.attachments.attach(id, droplet).await.map_err(errors::publish)?;
        self.cache.invalidate_volumes();
        if let Some(tag) = self.tag.as_ref().filter(|tag| !volume.tags.contains(tag)) {
            self.client.tag_volume(id, tag).await.map_err(BackendError::from)?;
        }
        let size = bytes(volume.size_gigabytes).to_string();
        Ok([(self.keys.volume_name.clone(), volume.name), (self.keys.size.clone(), size)].into())
    }

    async fn unpublish(&self, request: &UnpublishVolume) -> Result<(), PublishError> {
        let id = &request.id;
        let droplets = match request.node.as_ref().map(|node| (node, droplet_of(node))) {
            Some((_, Some(droplet))) => vec![droplet],
            Some((node, None)) => {
                // A volume cannot be attached to an invalid node id. But if it is attached to a droplet, reporting
                // success would be a guess.
                return match self.attached_to(id).await?.as_slice() {
                    [] => Ok(()),
                    [droplet, ..] => Err(PublishError::NotFound(format!(
                        "there is no droplet {node:?}: its id is a number; volume {id} is attached to {droplet}"
                    ))),
                };
            }
            None => self.attached_to(id).await?,
        };
        for droplet in droplets {
            self.attachments.detach(id, droplet).await.map_err(errors::publish)?;
        }
        self.cache.invalidate_volumes();
        Ok(())
    }

    fn read_only(&self) -> bool {
        false
    }
}

impl Controller {
    /// The droplets a volume is attached to; empty if the volume does not exist.
    async fn attached_to(&self, id: &str) -> Result<Vec<u64>, BackendError> {
        Ok(self.client.urgent().volume(id).await?.map(|volume| volume.droplet_ids).unwrap_or_default())
    }
}

fn droplet_of(node: &str) -> Option<u64> {
    node.parse().ok().filter(|id| *id > 0)
}
