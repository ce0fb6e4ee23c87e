//! DigitalOcean Block Storage as a CSI driver: takes over from `dobs.csi.digitalocean.com`.

mod names;
mod node;
mod size;

pub use names::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME, REGION_KEY};
pub use node::{NodeDevices, NodeOptions, NodeSetupError};
