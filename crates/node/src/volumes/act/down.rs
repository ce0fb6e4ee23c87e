//! Takes volumes down.

use wharf_csi::v1;

use super::super::failure::Class;
use super::super::manager::{Manager, Seen};
use super::super::request::Secrets;
use super::super::world::{Device, Expansion, Mode};
use super::Trouble;

impl Manager {
    pub(super) async fn unpublish(&self, unique: &str, seen: &Seen, pod: &str) -> Result<(), Trouble> {
        let (volume, plugin) = (&seen.volume, self.plugin(seen)?);
        let target = volume.target(&self.parts.root, pod);
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.handle.clone(),
            target_path: target.display().to_string(),
        };
        let client = plugin.client().with_deadline(self.settings.timeout);
        let answer = client.node().node_unpublish_volume(request).await;
        answer.map_err(|status| Trouble::of_driver(&status, &Secrets::new()))?;
        // What the driver should have removed, and our record: the record last, so that it is found again if we die here.
        let spec = volume.mounts.get(pod).map_or(&volume.spec, |mount| &mount.spec).clone();
        let (mode, uid) = (volume.mode, pod.to_owned());
        let removed = self.disk.run(move |here| match mode {
            Mode::Filesystem => here.remove(&target),
            Mode::Block => here.remove_device_share(&spec, &uid),
        });
        removed.await?;
        self.change(unique, |volume| {
            volume.mounts.remove(pod);
            // Another pod may have been refused because this one had it.
            volume.failures.retain(|(_, uid), failure| uid != pod && failure.class != Class::Transient);
        });
        tracing::info!(volume = unique, pod, "unmounted");
        self.wake_pod(pod);
        Ok(())
    }

    pub(super) async fn unstage(&self, unique: &str, seen: &Seen) -> Result<(), Trouble> {
        let (volume, plugin) = (&seen.volume, self.plugin(seen)?);
        let staging = volume.staging(&self.parts.root);
        let path = staging.clone();
        self.disk.run(move |here| here.referenced(&path)).await?;
        if plugin.capabilities.stage_unstage {
            self.change(unique, |volume| {
                if volume.device == Device::Staged {
                    volume.device = Device::Uncertain { found: false };
                }
            });
            let request = v1::NodeUnstageVolumeRequest {
                volume_id: volume.handle.clone(),
                staging_target_path: staging.display().to_string(),
            };
            let client = plugin.client().with_deadline(self.settings.timeout);
            let answer = client.node().node_unstage_volume(request).await;
            answer.map_err(|status| Trouble::of_driver(&status, &Secrets::new()))?;
        }
        let (mode, spec) = (volume.mode, volume.spec.clone());
        let removed = self.disk.run(move |here| match mode {
            Mode::Filesystem => here.remove(&staging),
            Mode::Block => here.remove_device(&spec),
        });
        removed.await?;
        self.change(unique, |volume| {
            volume.device = Device::None;
            volume.staged_at = None;
            volume.se_linux = None;
            volume.context = None;
            volume.size = None;
            volume.expansion = Expansion::default();
        });
        tracing::info!(volume = unique, "unstaged");
        Ok(())
    }
}
