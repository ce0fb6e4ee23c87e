//! Settings of the provisioner: those of upstream's flags that have an effect here.

use std::time::Duration;

use wharf_model::names::VolumeNaming;

use wharf_cluster::work::WorkerOptions;

/// Settings of the provisioner.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Concurrency, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// How volumes are named.
    pub naming: VolumeNaming,
    /// The file system if the class names none. Empty leaves it to the driver.
    pub default_fstype: String,
    /// Pass the names of claim and volume to the driver.
    pub extra_create_metadata: bool,
    /// Pass only the selected node's topology to the driver.
    pub strict_topology: bool,
    /// Pass topology to the driver even if no node is selected.
    pub immediate_topology: bool,
    /// Restore a snapshot only in the volume mode of its source.
    pub prevent_volume_mode_conversion: bool,
    /// Set `readOnly` on volumes whose only access mode is ReadOnlyMany.
    pub controller_publish_readonly: bool,
    /// Publish CSIStorageCapacity objects.
    pub capacity: Option<CapacitySettings>,
    /// With node deployment: how to compete with other nodes for claims with immediate binding. `None`: do not compete.
    pub immediate_binding: Option<ImmediateBinding>,
    /// How often to search for snapshots whose protection finalizer was left behind. `None`: never.
    pub orphan_sweep: Option<Duration>,
    /// Cloned claims whose protection is checked concurrently.
    pub cloning_protection_threads: usize,
}

/// How CSIStorageCapacity objects are published.
#[derive(Debug, Clone)]
pub struct CapacitySettings {
    /// Also for classes with immediate binding.
    pub immediate_binding: bool,
    /// How often GetCapacity is called without any change.
    pub poll_interval: Duration,
    /// The owner: 0 is the sidecar's pod, 1 the pod's controller, and so on. Negative: no owner.
    pub owner_level: i32,
    /// The name of the sidecar's pod, to find the owner.
    pub pod: Option<String>,
    /// Objects refreshed concurrently.
    pub threads: usize,
    /// Writes of objects per second. A rate that is not positive is no limit.
    pub write_qps: f32,
    /// Writes of objects that may exceed the rate.
    pub write_burst: u32,
}

impl Default for CapacitySettings {
    /// Upstream's, without an owner.
    fn default() -> Self {
        Self {
            immediate_binding: false,
            poll_interval: Duration::from_secs(60),
            owner_level: -1,
            pod: None,
            threads: 1,
            write_qps: 1.0,
            write_burst: 5,
        }
    }
}

/// How nodes compete for a claim with immediate binding.
#[derive(Debug, Clone)]
pub struct ImmediateBinding {
    /// The shortest delay.
    pub base_delay: Duration,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_options: WorkerOptions::with_timeout(Duration::from_secs(10)),
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
            cloning_protection_threads: 4,
        }
    }
}
