//! Safe format, done: gathers the evidence, asks [`decide`], and does that one thing.
//!
//! The order is what makes it safe to die anywhere: the record says `Formatting` with the UUID before mkfs
//! writes its first byte, and `Formatted` before anybody can mount the result.

use std::path::Path;

use wharf_linux::{FsError, FsType, Kernel, MakeFs, Probe, random_uuid};

use super::block::{Block, FsRequest};
use super::error::NodeError;
use crate::backend::{Device, Format, StageVolume};
use crate::format::{Decision, Evidence, ZeroProof, decide, needs_zero_proof, zero};

/// A device that is ready to be mounted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared {
    /// Its file system.
    pub(super) fs: FsType,
    /// No copy of it has the same UUID: where that is recorded. Else it may be one of several copies of a snapshot.
    pub(super) own_uuid: bool,
}

impl Block {
    /// Makes sure that the volume's own file system is on its device, and says how it is to be mounted.
    pub(super) async fn prepare(
        &self,
        volume: &StageVolume,
        device: &Device,
        request: &FsRequest,
        scratch: &Path,
    ) -> Result<Prepared, NodeError> {
        let record = match self.devices.records() {
            Some(records) => records.format(&volume.id).await?,
            None => None,
        };
        let own_uuid = record.is_some();
        let (known, seen) = (record.clone(), device.clone());
        let (probe, zero) = self.machine.run(move |kernel| gather(kernel, known.as_ref(), &seen)).await?;
        let decision = decide(&Evidence {
            record: record.as_ref(),
            probe: &probe,
            zero,
            wanted: request.fs,
            size: device.size,
            reader_only: request.read_only,
            device_read_only: device.read_only,
            never_formats: self.devices.never_formats(volume),
        });
        tracing::info!(volume = volume.id, device = %device.path.display(), ?record, ?probe, ?decision, "safe format");
        let fs = match decision {
            Decision::Mount { fs } => Ok(fs),
            Decision::Format { fs } => {
                let uuid = random_uuid()?;
                self.record(&volume.id, Format::Formatting { fs, uuid: uuid.clone() }).await?;
                self.make(volume, device, request, fs, uuid).await
            }
            Decision::Remake { fs, uuid } => self.make(volume, device, request, fs, uuid).await,
            Decision::Adopt { fs, uuid } => match self.check(device, fs).await? {
                Ok(()) => {
                    self.record(&volume.id, Format::Formatted { fs, uuid }).await?;
                    Ok(fs)
                }
                Err(damage) if request.read_only => Err(damage.into()),
                Err(_) => self.make(volume, device, request, fs, uuid).await,
            },
            Decision::RenewUuid { fs, uuid } => self.renew(volume, device, fs, uuid, scratch).await,
            Decision::Refuse(refusal) => {
                Err(NodeError::Refused { device: device.path.display().to_string(), refusal })
            }
        }?;
        Ok(Prepared { fs, own_uuid })
    }

    async fn make(
        &self,
        volume: &StageVolume,
        device: &Device,
        request: &FsRequest,
        fs: FsType,
        uuid: String,
    ) -> Result<FsType, NodeError> {
        let (path, options, new) = (device.path.clone(), request.mkfs_options.clone(), uuid.clone());
        self.machine
            .run(move |kernel| Ok(kernel.make_fs(&path, &MakeFs { fs, uuid: &new, options: &options })?))
            .await?;
        self.record(&volume.id, Format::Formatted { fs, uuid }).await?;
        Ok(fs)
    }

    async fn renew(
        &self,
        volume: &StageVolume,
        device: &Device,
        fs: FsType,
        uuid: String,
        scratch: &Path,
    ) -> Result<FsType, NodeError> {
        let (path, scratch, new) = (device.path.clone(), scratch.to_owned(), uuid.clone());
        self.machine
            .run(move |kernel| {
                kernel.create_target_dir(&scratch)?;
                kernel.set_fs_uuid(&path, fs, &new, &scratch)?;
                Ok(kernel.remove_target(&scratch)?)
            })
            .await?;
        self.record(&volume.id, Format::Formatted { fs, uuid }).await?;
        Ok(fs)
    }

    /// The outer error: the check could not be done. The inner one: it found damage.
    async fn check(&self, device: &Device, fs: FsType) -> Result<Result<(), FsError>, NodeError> {
        let path = device.path.clone();
        self.machine
            .run(move |kernel| match kernel.check_fs(&path, fs) {
                Err(FsError::Check(error)) => Err(error.into()),
                answer => Ok(answer),
            })
            .await
    }

    async fn record(&self, id: &str, format: Format) -> Result<(), NodeError> {
        match self.devices.records() {
            Some(records) => Ok(records.set_format(id, &format).await?),
            None => Ok(()),
        }
    }
}

fn gather(
    kernel: &dyn Kernel,
    record: Option<&Format>,
    device: &Device,
) -> Result<(Probe, ZeroProof), NodeError> {
    let probe = kernel.probe(&device.path)?;
    let zero = match needs_zero_proof(record, &probe) {
        true => zero::prove(kernel, &device.path, device.size, random()?)?,
        false => ZeroProof::NotTaken,
    };
    Ok((probe, zero))
}

/// Where samples are taken, which nobody can foresee.
fn random() -> Result<u64, NodeError> {
    getrandom::u64().map_err(|error| NodeError::Bug(format!("no random numbers: {error}")))
}
