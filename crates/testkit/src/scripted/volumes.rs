//! Volume rules of the Controller service.

use tonic::{Code, Status};
use wharf_csi::v1::{self as csi};

use super::state::{LockedState, Volume, is_file_name};
use super::{Refusal, ScriptedService, violation};

use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

/// The capacity that an unlimited driver reports.
const BOUNDLESS: i64 = 1 << 50;

const SINGLE_NODE: [Mode; 4] = [
    Mode::SingleNodeWriter,
    Mode::SingleNodeReaderOnly,
    Mode::SingleNodeSingleWriter,
    Mode::SingleNodeMultiWriter,
];

impl ScriptedService {
    pub(super) fn create(
        &self,
        held: &LockedState<'_>,
        request: csi::CreateVolumeRequest,
    ) -> Result<Volume, Refusal> {
        let id = format!("vol-{}", request.name);
        if !is_file_name(&id) {
            return Err(Status::invalid_argument(format!("no volume can be named {:?}", request.name)).into());
        }
        let text = format!("{request:?}");
        if let Some(volume) = held.volume(&id)? {
            if volume.request != text {
                let text = format!(
                    "{} was requested as {} and is now requested as {text}",
                    request.name, volume.request
                );
                return Err(violation(Code::AlreadyExists, text));
            }
            return Ok(volume);
        }
        let source = request.volume_content_source.and_then(|source| source.r#type);
        let (source_volume, source_snapshot) = match source {
            Some(Source::Volume(VolumeSource { volume_id })) => {
                (Some(existing_volume(held, &volume_id)?.id), None)
            }
            Some(Source::Snapshot(SnapshotSource { snapshot_id })) => match held.snapshot(&snapshot_id)? {
                Some(snapshot) => (None, Some(snapshot.id)),
                None => {
                    return Err(Status::not_found(format!("snapshot {snapshot_id} does not exist")).into());
                }
            },
            None => (None, None),
        };
        let wanted = request.accessibility_requirements.unwrap_or_default();
        let first = wanted.preferred.into_iter().chain(wanted.requisite).next();
        let segment = first.and_then(|topology| topology.segments.into_iter().next());
        let segment = segment.filter(|(key, _)| Some(key) == self.options.topology_key.as_ref());
        let bytes = required(request.capacity_range.as_ref()).max(1);
        if bytes > self.available_bytes(held, segment.as_ref())? {
            return Err(Status::resource_exhausted(format!("not enough capacity for {bytes} bytes")).into());
        }
        held.create_data(&id, source_volume.as_deref().or(source_snapshot.as_deref()))?;
        let volume = Volume {
            id,
            bytes,
            request: text,
            source_volume,
            source_snapshot,
            segment,
            mutable: request.mutable_parameters,
            published: Default::default(),
            mounted: Default::default(),
        };
        held.put_volume(&volume)?;
        Ok(volume)
    }

    /// The available capacity of a segment, or of the whole driver.
    pub(super) fn available_bytes(
        &self,
        held: &LockedState<'_>,
        segment: Option<&(String, String)>,
    ) -> Result<i64, Refusal> {
        let Some(capacity) = self.options.capacity else {
            return Ok(BOUNDLESS);
        };
        let volumes = held.volumes("", usize::MAX)?;
        let in_segment =
            volumes.iter().filter(|volume| segment.is_none() || volume.segment.as_ref() == segment);
        Ok((capacity - in_segment.map(|volume| volume.bytes).sum::<i64>()).max(0))
    }
}

pub(super) fn publish(
    held: &LockedState<'_>,
    request: &csi::ControllerPublishVolumeRequest,
) -> Result<(), Refusal> {
    let mut volume = existing_volume(held, &request.volume_id)?;
    let arguments = format!("{:?} readonly {}", request.volume_capability, request.readonly);
    if let Some(already) = volume.published.get(&request.node_id) {
        if *already == arguments {
            return Ok(());
        }
        let text = format!("{} is published as {already} and is now requested as {arguments}", volume.id);
        return Err(violation(Code::AlreadyExists, text));
    }
    let mode = request.volume_capability.as_ref().and_then(|capability| capability.access_mode.as_ref());
    let single = mode.is_some_and(|mode| SINGLE_NODE.contains(&mode.mode()));
    if let Some(other) = volume.published.keys().next().filter(|_| single) {
        let text =
            format!("single-node volume {} is published to {other} and to {}", volume.id, request.node_id);
        return Err(violation(Code::FailedPrecondition, text));
    }
    volume.published.insert(request.node_id.clone(), arguments);
    held.put_volume(&volume)?;
    Ok(())
}

pub(super) fn existing_volume(held: &LockedState<'_>, id: &str) -> Result<Volume, Refusal> {
    held.volume(id)?.ok_or_else(|| Status::not_found(format!("volume {id} does not exist")).into())
}

pub(super) fn to_csi(volume: &Volume) -> csi::Volume {
    let from_volume =
        volume.source_volume.clone().map(|volume_id| Source::Volume(VolumeSource { volume_id }));
    let from_snapshot =
        volume.source_snapshot.clone().map(|snapshot_id| Source::Snapshot(SnapshotSource { snapshot_id }));
    let source = from_volume.or(from_snapshot);
    let topology = volume.segment.clone().map(|segment| csi::Topology { segments: [segment].into() });
    csi::Volume {
        capacity_bytes: volume.bytes,
        volume_id: volume.id.clone(),
        volume_context: [("scripted".to_owned(), "true".to_owned())].into(),
        content_source: source.map(|kind| csi::VolumeContentSource { r#type: Some(kind) }),
        accessible_topology: topology.into_iter().collect(),
    }
}

pub(super) fn required(range: Option<&csi::CapacityRange>) -> i64 {
    range.map_or(0, |range| range.required_bytes)
}
