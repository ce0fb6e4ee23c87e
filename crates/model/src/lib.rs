//! Types and rules of Kubernetes storage: slim views of the objects we watch, and pure functions over them. No I/O and
//! no runtime; rules get the time as an argument. The clock and the randomness of the system are in `random`, where a
//! simulation can replace them. `panics` keeps the panic of one unit of work from ending a component.
//!
//! Views: one module per kind, from [`claim`] to [`lease`]. They decode only the fields that a rule reads.
//! Rules: one module per topic. Names that upstream defines (annotations, finalizers, reasons) are in [`names`].

pub mod access;
pub mod attachment;
pub mod attempt;
pub mod attributes_class;
pub mod capacity;
pub mod claim;
pub mod class;
pub mod config_map;
pub mod container;
pub mod csidriver;
pub mod csinode;
mod decode;
mod detail;
pub mod event;
pub mod group_snapshot;
mod kind;
pub mod lease;
mod map;
pub mod matching;
mod meta;
pub mod migration;
pub mod modify;
pub mod names;
pub mod node;
pub mod panics;
pub mod parameters;
pub mod patch;
pub mod pod;
mod quantity;
pub mod resize;
pub mod secret;
pub mod secrets;
pub mod selector;
pub mod snapshot;
pub mod system;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod time;
pub mod topology;
pub mod volume;
mod volume_name;

pub use attachment::VolumeAttachment;
pub use attempt::Attempt;
pub use attributes_class::VolumeAttributesClass;
pub use capacity::CSIStorageCapacity;
pub use claim::{AccessMode, PersistentVolumeClaim, VolumeMode};
pub use class::StorageClass;
pub use config_map::ConfigMap;
pub use csidriver::CSIDriver;
pub use csinode::CSINode;
pub use detail::Detail;
pub use event::Event;
pub use group_snapshot::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
pub use kind::{ApiResource, Kind, Scope, View};
pub use lease::Lease;
pub use map::StringMap;
pub use meta::{Key, Meta, OwnerRef};
pub use node::Node;
pub use pod::Pod;
pub use quantity::{ParseQuantityError, Quantity};
pub use secret::Secret;
pub use snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
pub use time::{Monotonic, Time};
pub use volume::{PersistentVolume, SecretRef};
pub use volume_name::UniqueVolumeName;
