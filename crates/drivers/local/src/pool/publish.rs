//! ControllerPublishVolume: writes the node to the volume's record. A pool on the node itself has nothing to attach;
//! the record is what prevents publishing to a second node and deletion while published.

use std::collections::BTreeMap;

use wharf_driver::backend::PublishError;

use super::PoolCore;
use crate::ids::{self, Kind};
use crate::record::{Attachment, VolumeRecord};

impl PoolCore {
    /// Attaches a volume to this node.
    pub fn publish(
        &self,
        id: &str,
        node: &str,
        read_only: bool,
    ) -> Result<BTreeMap<String, String>, PublishError> {
        let missing = || PublishError::NotFound(format!("there is no volume {id}"));
        if self.ready_volume(id)?.is_none() {
            return Err(missing());
        }
        if node != self.config.node_id {
            return Err(PublishError::NotFound(format!(
                "unknown node {node:?}: the pool is on {}",
                self.config.node_id
            )));
        }
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(missing)?;
        match &record.attached {
            Some(attachment) if attachment.node != node => {
                return Err(PublishError::InUse(format!("{id} is attached to node {}", attachment.node)));
            }
            Some(attachment) if attachment.read_only != read_only => {
                let how = if attachment.read_only { "read-only" } else { "for writing" };
                return Err(PublishError::Incompatible(format!("{id} is already attached to {node} {how}")));
            }
            Some(_) => return Ok(BTreeMap::new()),
            None => {}
        }
        let attached = self.index().attached();
        if self.config.max_volumes > 0
            && attached >= usize::try_from(self.config.max_volumes).unwrap_or(usize::MAX)
        {
            return Err(PublishError::Exhausted(format!(
                "{attached} volumes are attached to {node}, which is the limit"
            )));
        }
        let attachment = Some(Attachment { node: node.to_owned(), read_only });
        self.save_volume(VolumeRecord { attached: attachment, ..record })?;
        Ok(BTreeMap::new())
    }

    /// Detaches a volume from `node`, or from any node if `None`. Succeeds if it is not attached or does not exist.
    pub fn unpublish(&self, id: &str, node: Option<&str>) -> Result<(), PublishError> {
        if !ids::is(Kind::Volume, id) || self.ready_volume(id)?.is_none() {
            return Ok(());
        }
        let _lock = self.locks.exclusive(id)?;
        let Some(record) = self.ready_volume(id)? else { return Ok(()) };
        match &record.attached {
            None => return Ok(()),
            Some(attachment) if node.is_some_and(|node| node != attachment.node) => return Ok(()),
            Some(_) => {}
        }
        if let Some(device) = self.loop_devices_of(&record)?.first() {
            let device = device.path.display();
            return Err(PublishError::InUse(format!("{id} is still staged (as {device}): unstage it first")));
        }
        Ok(self.save_volume(VolumeRecord { attached: None, ..record })?)
    }
}
