//! The requests that the SDK passes to a backend: validated CSI requests, with every field that a backend may need.
//!
//! All of them are `#[non_exhaustive]`: a field that CSI adds later breaks no backend. A backend reads the fields. Tests
//! build requests with `new` and change fields with the method of the same name:
//!
//! ```
//! use std::collections::BTreeMap;
//! use wharf_driver::backend::{DeleteVolume, Secrets};
//!
//! let secrets = Secrets::from(BTreeMap::from([("token".to_owned(), "hunter2".to_owned())]));
//! let request = DeleteVolume::new("vol-1").secrets(secrets);
//! assert_eq!(request.id, "vol-1");
//! assert_eq!(request.secrets["token"], "hunter2");
//! assert!(!format!("{request:?}").contains("hunter2"));
//! ```
//!
//! Integers are plain arguments, so literals work:
//!
//! ```
//! use wharf_driver::backend::{GetAllocatedBlocks, ListVolumes, RefreshDevice};
//!
//! assert_eq!(ListVolumes::new(10).max(20).max, 20);
//! assert_eq!(RefreshDevice::new("vol-1", 1 << 30).at_least, 1 << 30);
//! assert_eq!(GetAllocatedBlocks::new("snap-1").starting_offset(0).starting_offset, 0);
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Capability, Secrets, SizeRange, Topology, VolumeContentSource, VolumeContext};

/// Defines requests. The fields in parentheses are the arguments of `new`; those in braces are optional. Methods take
/// `impl Into<T>` for a field `name: T`, and `T` for a field `name = T`: the type of an integer literal cannot be inferred
/// from `impl Into<u64>`.
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $name:ident($($(#[$required_doc:meta])* $required:ident $(: $required_type:ty)? $(= $required_as:ty)?,)+) {
            $($(#[$optional_doc:meta])* $optional:ident $(: $optional_type:ty)? $(= $optional_as:ty)?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$required_doc])* pub $required: $($required_type)? $($required_as)?,)+
            $($(#[$optional_doc])* pub $optional: $($optional_type)? $($optional_as)?,)*
        }

        impl $name {
            /// A request with these fields; the others are empty.
            pub fn new($($required: $(impl Into<$required_type>)? $($required_as)?),+) -> Self {
                Self { $($required: $required.into(),)+ $($optional: Default::default(),)* }
            }

            $(requests!(@setter $required $(: $required_type)? $(= $required_as)?);)+
            $(requests!(@setter $optional $(: $optional_type)? $(= $optional_as)?);)*
        }
    )*};
    (@setter $field:ident $(: $type:ty)? $(= $as:ty)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        pub fn $field(mut self, $field: $(impl Into<$type>)? $($as)?) -> Self {
            self.$field = $field.into();
            self
        }
    };
}

requests! {
    /// CreateVolume.
    NewVolume(
        /// The name that identifies the request: repeated calls have the same name.
        name: String,
        /// All capabilities that the volume must support; at least one.
        capabilities: Vec<Capability>,
    ) {
        /// The requested size.
        size: SizeRange,
        /// StorageClass parameters, overridden by mutable parameters.
        parameters: BTreeMap<String, String>,
        /// The content source; `None` for an empty volume.
        source: Option<VolumeContentSource>,
        /// The volume must be accessible from one of these topologies; empty for any.
        requisite: Vec<Topology>,
        /// Preferred topologies, in this order.
        preferred: Vec<Topology>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// DeleteVolume.
    DeleteVolume(
        /// The volume ID.
        id: String,
    ) {
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// Reads one volume: ControllerGetVolume, and the check of most other calls that their volume exists. It has the
    /// context and secrets that the call has; many calls have none.
    GetVolume(
        /// The volume ID.
        id: String,
    ) {
        /// The volume context. For a volume that was created by hand, it can be all that is known of the volume.
        volume_context: VolumeContext,
        /// Secrets of the call.
        secrets: Secrets,
    }

    /// One page of ListVolumes.
    ListVolumes(
        /// The maximum number of entries.
        max = usize,
    ) {
        /// Only volumes with an id greater than this one.
        after: Option<String>,
    }

    /// GetCapacity.
    #[derive(Default)]
    CapacityQuery(
        /// StorageClass parameters.
        parameters: BTreeMap<String, String>,
    ) {
        /// Capabilities that the volumes must support.
        capabilities: Vec<Capability>,
        /// The topology to report on; `None` for all.
        topology: Option<Topology>,
    }

    /// ControllerPublishVolume: attach a volume to a node.
    PublishVolume(
        /// The volume ID.
        id: String,
        /// The node ID, as NodeGetInfo returned it.
        node: String,
        /// How the volume will be used.
        capability: Capability,
    ) {
        /// Whether the node must not write to the volume.
        read_only: bool,
        /// The volume context from CreateVolume.
        volume_context: VolumeContext,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// ControllerUnpublishVolume: detach a volume.
    UnpublishVolume(
        /// The volume ID.
        id: String,
    ) {
        /// The node to detach it from; `None` for all nodes.
        node: Option<String>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// ControllerExpandVolume.
    ExpandVolume(
        /// The volume ID.
        id: String,
        /// The new size: grow to at least `size.required`.
        size: SizeRange,
    ) {
        /// How the volume is used. Only some callers pass it.
        capability: Option<Capability>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// ControllerModifyVolume.
    ModifyVolume(
        /// The volume ID.
        id: String,
        /// The mutable parameters to apply.
        parameters: BTreeMap<String, String>,
    ) {
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// CreateSnapshot.
    NewSnapshot(
        /// The name that identifies the request: repeated calls have the same name.
        name: String,
        /// The ID of the source volume.
        source: String,
    ) {
        /// VolumeSnapshotClass parameters.
        parameters: BTreeMap<String, String>,
        /// The snapshot must be accessible from one of these topologies; empty for any.
        requisite: Vec<Topology>,
        /// Preferred topologies, in this order.
        preferred: Vec<Topology>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// DeleteSnapshot.
    DeleteSnapshot(
        /// The snapshot ID.
        id: String,
    ) {
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// GetSnapshot, and ListSnapshots of one id.
    GetSnapshot(
        /// The snapshot ID.
        id: String,
    ) {
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// One page of ListSnapshots.
    ListSnapshots(
        /// The maximum number of entries.
        max = usize,
    ) {
        /// Only snapshots with an id greater than this one.
        after: Option<String>,
        /// Only snapshots of this volume.
        source: Option<String>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// CreateVolumeGroupSnapshot.
    NewGroupSnapshot(
        /// The name that identifies the request: repeated calls have the same name.
        name: String,
        /// The IDs of the source volumes: sorted, without duplicates, at least one.
        sources: Vec<String>,
    ) {
        /// VolumeGroupSnapshotClass parameters.
        parameters: BTreeMap<String, String>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// DeleteVolumeGroupSnapshot.
    DeleteGroupSnapshot(
        /// The group snapshot ID.
        id: String,
    ) {
        /// The IDs of the member snapshots. The SDK has compared them with an existing group's.
        snapshots: Vec<String>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// GetVolumeGroupSnapshot, and the check of DeleteVolumeGroupSnapshot that the members match.
    GetGroupSnapshot(
        /// The group snapshot ID.
        id: String,
    ) {
        /// The IDs of the member snapshots, according to the caller.
        snapshots: Vec<String>,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// GetMetadataAllocated.
    GetAllocatedBlocks(
        /// The snapshot ID.
        snapshot: String,
    ) {
        /// Only blocks that end after this offset in bytes.
        starting_offset = u64,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// GetMetadataDelta.
    GetChangedBlocks(
        /// The ID of the older snapshot.
        base: String,
        /// The ID of the newer snapshot.
        target: String,
    ) {
        /// Only blocks that end after this offset in bytes.
        starting_offset = u64,
        /// Secrets of the request.
        secrets: Secrets,
    }

    /// ControllerGetVolumeHealth, NodeGetVolumeHealth, and each entry of ControllerListVolumeHealth.
    GetVolumeHealth(
        /// The volume ID.
        id: String,
    ) {
        /// Where the volume is published, if the call is NodeGetVolumeHealth and has the path.
        publish_path: Option<PathBuf>,
        /// Where the volume is staged, if the call is NodeGetVolumeHealth and has the path.
        staging_path: Option<PathBuf>,
        /// Secrets of the request; NodeGetVolumeHealth has none.
        secrets: Secrets,
    }

    /// NodeGetStorageHealth.
    GetStorageHealth(
        /// Secrets of the request.
        secrets: Secrets,
    ) {}

    /// NodeStageVolume or NodePublishVolume.
    NodeVolume(
        /// The volume ID.
        id: String,
        /// How the volume is used, with its mount options and mount group.
        capability: Capability,
    ) {
        /// The publish context from ControllerPublishVolume.
        publish_context: BTreeMap<String, String>,
        /// The volume context from CreateVolume. In NodePublishVolume, kubelet adds information about the pod, if the
        /// CSIDriver object requests it.
        volume_context: VolumeContext,
        /// Secrets of the request: the node-stage secret or the node-publish secret.
        secrets: Secrets,
        /// The pod's target, if the call is NodePublishVolume; `None` if it is NodeStageVolume.
        target: Option<PublishTarget>,
    }

    /// The pod's side of NodePublishVolume.
    PublishTarget(
        /// Where the volume will be mounted for the pod.
        path: PathBuf,
    ) {
        /// Whether the pod must not write to the volume.
        read_only: bool,
    }

    /// NodeUnpublishVolume, for a backend that mounts at targets itself.
    UnpublishTarget(
        /// The volume ID.
        id: String,
        /// The pod's target.
        path: PathBuf,
    ) {}

    /// NodeGetVolumeStats, for a backend that mounts at targets itself.
    GetUsage(
        /// The volume ID.
        id: String,
        /// Where the volume is mounted.
        path: PathBuf,
    ) {}

    /// Updates a device to the volume's current size: NodeExpandVolume, or a stage of a volume that has grown since its
    /// device was attached.
    RefreshDevice(
        /// The volume ID.
        id: String,
        /// The size in bytes that the device must reach; the backend waits for it.
        at_least = u64,
    ) {
        /// The maximum size in bytes, if the caller sets one. The SDK rejects a device that is larger.
        limit = Option<u64>,
        /// Where the volume is mounted or staged, if the call is NodeExpandVolume.
        volume_path: Option<PathBuf>,
        /// Where the volume is staged. Only some callers of NodeExpandVolume pass it.
        staging_path: Option<PathBuf>,
        /// How the volume is used. Only some callers of NodeExpandVolume pass it.
        capability: Option<Capability>,
        /// Secrets of the call: the node-expand secret or the node-stage secret.
        secrets: Secrets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::AccessMode;

    #[test]
    fn debug_output_of_requests_has_no_secrets() {
        let hidden = || BTreeMap::from([("key".to_owned(), "hunter2".to_owned())]);
        let capability = || {
            let mut capability = Capability::mount("smb", AccessMode::MultiNodeMultiWriter);
            if let crate::backend::VolumeAccess::Mount(mount) = &mut capability.access {
                mount.flags = vec!["password=hunter2".to_owned()];
            }
            capability
        };
        let node = NodeVolume::new("v", capability())
            .secrets(hidden())
            .volume_context(hidden())
            .target(PublishTarget::new("/pod").read_only(true));
        let publish = PublishVolume::new("v", "n", capability()).secrets(hidden()).volume_context(hidden());
        for text in [
            format!("{node:?}"),
            format!("{publish:?}"),
            format!("{:?}", NewVolume::new("v", vec![capability()]).secrets(hidden())),
            format!("{:?}", GetStorageHealth::new(hidden())),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert!(format!("{node:?}").contains("\"key\""), "keys of the context are shown");
    }
}
