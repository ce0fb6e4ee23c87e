//! The driver as a library, so that tests can start it: the storage, and the capabilities that the driver declares.

mod directories;

use std::sync::Arc;

use wharf_driver::{Driver, DriverNameError, Linux, NodeInfo};

pub use directories::Directories;

/// The driver's name: the `provisioner` of StorageClasses and the name of the CSIDriver object.
pub const NAME: &str = "directories.csi.example.com";

/// Assembles the driver. Each method declares a capability: pass the traits that your storage implements.
pub fn driver(storage: Arc<Directories>, node_id: &str) -> Result<Driver, DriverNameError> {
    // 0: no limit on the number of volumes per node.
    let node = NodeInfo { node_id: node_id.to_owned(), max_volumes: 0 };
    Ok(Driver::new(NAME, env!("CARGO_PKG_VERSION"))?
        .volumes(storage.clone())
        .listing(storage.clone())
        .ready({
            let storage = storage.clone();
            Arc::new(move || storage.check())
        })
        .share_node(Arc::new(Linux::new()), storage, node)
        .build())
}
