//! Safe format: gathers the evidence, calls [`decide`], and carries out the decision.
//!
//! The order of steps makes it crash safe: the record says `Formatting` with the UUID before mkfs writes its first byte,
//! and `Formatted` before the result can be mounted.

use std::path::Path;

use wharf_linux::{FsType, Kernel, MakeFsRequest, ProbeResult, random_uuid};

use super::block::{Block, FsRequest};
use super::error::NodeError;
use crate::backend::{Device, FormatState, NodeVolume};
use crate::format::{Decision, Evidence, ZeroProof, decide, needs_zero_proof, zero};

/// A device that is ready to be mounted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared {
    pub(super) fs: FsType,
    /// Whether a record guarantees that no other volume has the same UUID. Without a record the volume can be one of
    /// several copies of a snapshot.
    pub(super) own_uuid: bool,
}

impl Block {
    /// Ensures that the volume's own file system is on its device, and returns how to mount it.
    pub(super) async fn prepare(
        &self,
        volume: &NodeVolume,
        device: &Device,
        request: &FsRequest,
        scratch: &Path,
    ) -> Result<Prepared, NodeError> {
        let record = match self.devices.format_records() {
            Some(records) => records.format(&volume.id).await?,
            None => None,
        };
        let own_uuid = record.is_some();
        let (known_record, probed) = (record.clone(), device.clone());
        let (probe, zero) =
            self.kernel.run(move |kernel| gather_evidence(kernel, known_record.as_ref(), &probed)).await?;
        let decision = decide(&Evidence {
            record: record.as_ref(),
            probe: &probe,
            zero,
            wanted: request.fs,
            size: device.size,
            reader_only: request.read_only,
            device_read_only: device.read_only,
            formatting_disabled: self.devices.formatting_disabled(volume),
        });
        tracing::info!(
            volume_handle = volume.id,
            device = %device.path.display(),
            ?record,
            ?probe,
            ?decision,
            "decided how to prepare device"
        );
        let fs = match decision {
            Decision::Mount { fs } => Ok(fs),
            Decision::Format { fs } => {
                let uuid = random_uuid()?;
                self.record(&volume.id, FormatState::Formatting { fs, uuid: uuid.clone() }).await?;
                self.make_fs(volume, device, request, fs, uuid).await
            }
            Decision::Reformat { fs, uuid } => self.make_fs(volume, device, request, fs, uuid).await,
            Decision::RenewUuid { fs, uuid } => self.renew_uuid(volume, device, fs, uuid, scratch).await,
            Decision::Refuse(refusal) => {
                Err(NodeError::Refused { device: device.path.display().to_string(), refusal })
            }
        }?;
        Ok(Prepared { fs, own_uuid })
    }

    async fn make_fs(
        &self,
        volume: &NodeVolume,
        device: &Device,
        request: &FsRequest,
        fs: FsType,
        uuid: String,
    ) -> Result<FsType, NodeError> {
        let (path, options, new) = (device.path.clone(), request.mkfs_options.clone(), uuid.clone());
        self.kernel
            .run(move |kernel| {
                Ok(kernel.make_fs(&path, &MakeFsRequest { fs, uuid: &new, options: &options })?)
            })
            .await?;
        self.record(&volume.id, FormatState::Formatted { fs, uuid }).await?;
        Ok(fs)
    }

    async fn renew_uuid(
        &self,
        volume: &NodeVolume,
        device: &Device,
        fs: FsType,
        uuid: String,
        scratch: &Path,
    ) -> Result<FsType, NodeError> {
        let (path, scratch, new) = (device.path.clone(), scratch.to_owned(), uuid.clone());
        self.kernel
            .run(move |kernel| {
                kernel.create_target_dir(&scratch)?;
                kernel.set_fs_uuid(&path, fs, &new, &scratch)?;
                Ok(kernel.remove_target(&scratch)?)
            })
            .await?;
        self.record(&volume.id, FormatState::Formatted { fs, uuid }).await?;
        Ok(fs)
    }

    async fn record(&self, id: &str, format: FormatState) -> Result<(), NodeError> {
        match self.devices.format_records() {
            Some(records) => Ok(records.set_format(id, &format).await?),
            None => Ok(()),
        }
    }
}

fn gather_evidence(
    kernel: &dyn Kernel,
    record: Option<&FormatState>,
    device: &Device,
) -> Result<(ProbeResult, ZeroProof), NodeError> {
    let probe = kernel.probe(&device.path)?;
    let zero = match needs_zero_proof(record, &probe) {
        true => zero::prove(kernel, &device.path, device.size, random_seed()?)?,
        false => ZeroProof::NotTaken,
    };
    Ok((probe, zero))
}

/// A random seed, so that the sampled ranges cannot be predicted.
fn random_seed() -> Result<u64, NodeError> {
    getrandom::u64().map_err(|error| NodeError::Bug(format!("failed to get random bytes: {error}")))
}
