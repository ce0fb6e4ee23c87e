//! The driver, put together: a node half always, and a controller half where there is a token.

use std::path::PathBuf;
use std::sync::Arc;

use wharf_driver::{Driver, NameError, NodeInfo};
use wharf_linux::Kernel;

use crate::Account;
use crate::actions::{Attachments, Pace};
use crate::client::Client;
use crate::controller::{Controller, ControllerOptions};
use crate::names::topology_of;
use crate::node::{NodeDevices, NodeOptions, NodeSetupError};

/// How the driver is run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name: that of the driver whose volumes it takes over.
    pub driver_name: String,
    /// Region of the droplet and of its volumes.
    pub region: String,
    /// The droplet; `None` where no node half is wanted: a controller outside DigitalOcean.
    pub droplet: Option<u64>,
    /// How many volumes a droplet can have; 0 for no limit.
    pub volume_limit: i64,
    /// A tag for every volume.
    pub tag: Option<String>,
    /// Where links to devices are.
    pub device_dir: PathBuf,
    /// Where the node keeps its notes.
    pub state_dir: PathBuf,
}

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The SDK does not accept the name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The node half cannot keep its notes.
    #[error(transparent)]
    Node(#[from] NodeSetupError),
}

/// The API, for a controller half.
pub struct Cloud {
    /// Who speaks to it.
    pub client: Client,
    /// How the account stands.
    pub account: Account,
    /// How patiently attachments are waited for.
    pub pace: Pace,
}

/// Makes the driver: with a controller half where there is a token, and so a [`Cloud`].
pub fn driver(kernel: Arc<dyn Kernel>, cloud: Option<Cloud>, config: Config) -> Result<Driver, DriverError> {
    let Config { driver_name, region, droplet, volume_limit, tag, device_dir, state_dir } = config;
    let mut driver = Driver::new(&driver_name, env!("CARGO_PKG_VERSION"))?.topology(topology_of(&region));
    if let Some(Cloud { client, account, pace }) = cloud {
        let attachments = Attachments::new(client.clone(), &region, pace);
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
