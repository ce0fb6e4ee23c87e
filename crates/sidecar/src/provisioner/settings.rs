//! What the provisioner is told: upstream's flags, as far as they mean something here.

use std::time::Duration;

use wharf_model::names::VolumeNaming;

use wharf_cluster::work::Pace;

/// What the provisioner is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// How volumes are named.
    pub naming: VolumeNaming,
    /// The file system where the class names none; empty leaves it to the driver.
    pub default_fstype: String,
    /// Tell the driver the names of claim and volume.
    pub extra_create_metadata: bool,
    /// The selected node's place and no other.
    pub strict_topology: bool,
    /// Tell the driver about places even where no node is selected.
    pub immediate_topology: bool,
    /// Restore a snapshot only in the volume mode of its source.
    pub prevent_volume_mode_conversion: bool,
    /// Mark volumes that are only ever read as such.
    pub controller_publish_readonly: bool,
    /// Keep CSIStorageCapacity objects.
    pub capacity: Option<CapacitySettings>,
    /// Where the sidecar is a node's own: how it competes with other nodes for claims that any node could have.
    pub immediate_binding: Option<ImmediateBinding>,
    /// How often snapshots are looked for whose protection was forgotten; `None`: never.
    pub orphan_sweep: Option<Duration>,
}

/// How CSIStorageCapacity objects are kept.
#[derive(Debug, Clone)]
pub struct CapacitySettings {
    /// Also for classes that bind at once.
    pub immediate_binding: bool,
    /// How often the driver is asked without another reason.
    pub poll_interval: Duration,
    /// Who owns them: 0 our pod, 1 what controls it, and so on; negative: nobody.
    pub owner_level: i32,
    /// Our pod, for the owner.
    pub pod: Option<String>,
}

/// How nodes compete for a claim that any of them could have.
#[derive(Debug, Clone)]
pub struct ImmediateBinding {
    /// The shortest wait.
    pub base_delay: Duration,
    /// The longest.
    pub max_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace::with_timeout(Duration::from_secs(10)),
            naming: VolumeNaming::default(),
            default_fstype: String::new(),
            extra_create_metadata: false,
            strict_topology: false,
            immediate_topology: true,
            prevent_volume_mode_conversion: true,
            controller_publish_readonly: false,
            capacity: None,
            immediate_binding: None,
            orphan_sweep: Some(Duration::from_secs(300)),
        }
    }
}
