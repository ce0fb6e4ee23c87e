//! DigitalOcean Block Storage as a CSI driver: takes over from `dobs.csi.digitalocean.com`.
//!
//! The client half: [`Client`] speaks to the API within its limits, [`Attachments`] attaches, detaches and
//! resizes and says when that is done, [`Metadata`] tells a droplet who it is.
//!
//! The driver half: [`Controller`] is DigitalOcean behind the SDK's traits, [`NodeDevices`] are its volumes on a
//! droplet, and [`driver`] makes a driver of them.

mod account;
pub mod actions;
pub mod api;
mod chance;
pub mod client;
mod controller;
mod driver;
mod fault;
pub mod metadata;
mod names;
mod node;
mod size;

pub use account::{Account, Standing};
pub use actions::{Attachments, OperationError};
pub use client::{ApiError, Client, ClientOptions, Kind, Refused, Token};
pub use controller::{Controller, ControllerOptions};
pub use driver::{Cloud, Config, DriverError, driver};
pub use metadata::Metadata;
pub use names::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME, REGION_KEY};
pub use node::{NodeDevices, NodeOptions, NodeSetupError};
