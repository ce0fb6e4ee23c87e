//! The vocabulary and rules of Kubernetes storage: slim views of the objects we watch, and pure functions over
//! them. No I/O, no runtime, no clock but the one handed in. The one there is to hand in is in [`chance`].
//!
//! Views: one module a kind, from [`claim`] to [`lease`]; only the fields that a rule reads are decoded.
//! Rules: one module a subject. Words that upstream put into objects are in [`names`].

pub mod access;
pub mod attachment;
pub mod attributes_class;
pub mod capacity;
pub mod chance;
pub mod claim;
pub mod class;
pub mod config_map;
pub mod csidriver;
pub mod csinode;
pub mod event;
pub mod group_snapshot;
mod kind;
pub mod lease;
mod map;
pub mod matching;
mod meta;
pub mod modify;
pub mod names;
pub mod node;
pub mod parameters;
pub mod patch;
pub mod pod;
mod quantity;
pub mod resize;
pub mod secret;
pub mod secrets;
pub mod selector;
pub mod snapshot;
mod time;
pub mod topology;
pub mod volume;
mod volume_name;
pub mod whole;
mod words;

pub use attachment::VolumeAttachment;
pub use attributes_class::VolumeAttributesClass;
pub use capacity::CSIStorageCapacity;
pub use claim::{AccessMode, PersistentVolumeClaim, VolumeMode};
pub use class::StorageClass;
pub use config_map::ConfigMap;
pub use csidriver::CSIDriver;
pub use csinode::CSINode;
pub use event::Event;
pub use group_snapshot::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
pub use kind::{Api, Kind, Scope};
pub use lease::Lease;
pub use map::Map;
pub use meta::{Key, Meta, OwnerRef};
pub use node::Node;
pub use pod::Pod;
pub use quantity::{NotAQuantity, Quantity};
pub use secret::Secret;
pub use snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
pub use time::Time;
pub use volume::{PersistentVolume, SecretRef};
pub use volume_name::VolumeName;
