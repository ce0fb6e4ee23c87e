//! Unpublishes and unstages volumes.

use wharf_csi::v1;

use super::super::failure::Class;
use super::super::manager::{Inputs, Manager};
use super::super::request::Secrets;
use super::super::world::{Device, Expansion, Mode};
use super::StepError;

impl Manager {
    /// Unmounts the volume from the pod: NodeUnpublishVolume, then the target path and our record.
    pub(super) async fn unpublish(&self, unique: &str, inputs: &Inputs, pod: &str) -> Result<(), StepError> {
        let (volume, plugin) = (&inputs.volume, self.plugin(inputs)?);
        let target = volume.target(&self.parts.root, pod);
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.handle.clone(),
            target_path: target.display().to_string(),
        };
        let client = plugin.client().with_deadline(self.settings.timeout);
        let response = client.node().node_unpublish_volume(request).await;
        response.map_err(|status| StepError::of_driver(&status, &Secrets::new()))?;
        // Remove what the driver should have removed, then our record. The record is removed last, so that it is found
        // again after a crash.
        let spec = volume.mounts.get(pod).map_or(&volume.spec, |mount| &mount.spec).clone();
        let (mode, uid) = (volume.mode, pod.to_owned());
        let removal = self.disk.run(move |disk| match mode {
            Mode::Filesystem => disk.remove(&target),
            Mode::Block => disk.remove_published_device(&spec, &uid),
        });
        removal.await?;
        self.change(unique, |volume| {
            volume.mounts.remove(pod);
            // Retry other pods at once: the driver may have rejected them because this pod had the volume mounted.
            volume.failures.retain(|(_, uid), failure| uid != pod && failure.class != Class::Transient);
        });
        tracing::info!(
            driver = volume.driver,
            volume_handle = volume.handle,
            pod_uid = pod,
            "unmounted volume"
        );
        self.wake_pod(pod);
        Ok(())
    }

    /// Unstages the volume, unless its staging path is still referenced.
    pub(super) async fn unstage(&self, unique: &str, inputs: &Inputs) -> Result<(), StepError> {
        let (volume, plugin) = (&inputs.volume, self.plugin(inputs)?);
        let staging = volume.staging(&self.parts.root);
        let path = staging.clone();
        self.disk.run(move |disk| disk.ensure_unreferenced(&path)).await?;
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
            let response = client.node().node_unstage_volume(request).await;
            response.map_err(|status| StepError::of_driver(&status, &Secrets::new()))?;
        }
        let (mode, spec) = (volume.mode, volume.spec.clone());
        let removal = self.disk.run(move |disk| match mode {
            Mode::Filesystem => disk.remove(&staging),
            Mode::Block => disk.remove_device(&spec),
        });
        removal.await?;
        self.change(unique, |volume| {
            volume.device = Device::None;
            volume.staged_at = None;
            volume.se_linux = None;
            volume.context = None;
            volume.size = None;
            volume.expansion = Expansion::default();
        });
        tracing::info!(driver = volume.driver, volume_handle = volume.handle, "unstaged volume");
        Ok(())
    }
}
