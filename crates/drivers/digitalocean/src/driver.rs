//! Builds the driver: the node service where a droplet is given, and the controller service where a token is given.

use std::path::PathBuf;
use std::sync::Arc;

use wharf_driver::{Driver, DriverNameError, NodeInfo};
use wharf_linux::Kernel;

use crate::Account;
use crate::actions::{Attachments, PollingOptions};
use crate::client::Client;
use crate::controller::{Controller, ControllerOptions};
use crate::names::topology_of;
use crate::node::{NodeDevices, NodeOptions, NodeSetupError};

/// Settings of the driver.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name: that of the driver whose volumes it takes over.
    pub driver_name: String,
    /// Region of the droplet and of its volumes.
    pub region: String,
    /// The droplet; `None` for no node service, for example a controller outside DigitalOcean.
    pub droplet: Option<u64>,
    /// Maximum number of volumes per droplet; 0 for no limit.
    pub volume_limit: i64,
    /// A tag for every volume.
    pub tag: Option<String>,
    /// The directory with the by-id links of devices.
    pub device_dir: PathBuf,
    /// The node's state directory.
    pub state_dir: PathBuf,
}

/// Why the driver could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The SDK rejected the driver name.
    #[error(transparent)]
    Name(#[from] DriverNameError),
    /// The node's state directory cannot be created.
    #[error(transparent)]
    Node(#[from] NodeSetupError),
}

/// What the controller service needs.
pub struct ControllerBackend {
    /// The API client.
    pub client: Client,
    /// The account's status.
    pub account: Account,
    /// Timeout and polling intervals of attachments.
    pub polling: PollingOptions,
}

/// Builds the driver, with a controller service if `cloud` is given.
pub fn driver(
    kernel: Arc<dyn Kernel>,
    cloud: Option<ControllerBackend>,
    config: Config,
) -> Result<Driver, DriverError> {
    let Config { driver_name, region, droplet, volume_limit, tag, device_dir, state_dir } = config;
    let mut driver = Driver::new(&driver_name, env!("CARGO_PKG_VERSION"))?.topology(topology_of(&region));
    if let Some(ControllerBackend { client, account, polling }) = cloud {
        let attachments = Attachments::new(client.clone(), &region, polling);
        let options = ControllerOptions { driver_name: driver_name.clone(), region, tag };
        let controller = Arc::new(Controller::new(client, attachments, account, options));
        driver = driver
            .volumes(controller.clone())
            .listing(controller.clone())
            .publishing(controller.clone())
            .expansion(controller.clone())
            .snapshots(controller.clone())
            .health(controller);
    }
    if let Some(droplet) = droplet {
        let info = NodeInfo { node_id: droplet.to_string(), max_volumes: volume_limit };
        let devices = NodeDevices::new(kernel.clone(), NodeOptions { driver_name, device_dir, state_dir })?;
        driver = driver.block_node(kernel, Arc::new(devices), info);
    }
    Ok(driver.build())
}
