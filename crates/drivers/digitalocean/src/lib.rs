//! CSI driver for DigitalOcean Block Storage, a replacement for `dobs.csi.digitalocean.com`.
//!
//! Client: [`Client`] calls the API within its rate limits, [`Attachments`] attaches, detaches and resizes volumes
//! and waits until that is done, [`Metadata`] reads the droplet's id and region.
//!
//! Driver: [`Controller`] implements the SDK's controller traits, [`NodeDevices`] finds volumes as devices of a
//! droplet, and [`driver`] builds the driver from them.

mod account;
pub mod actions;
pub mod api;
mod backoff;
pub mod client;
mod controller;
mod driver;
mod errors;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod metadata;
mod names;
mod node;
mod size;

pub use account::{Account, AccountStatus};
pub use actions::{Attachments, OperationError};
pub use client::{ApiError, ApiErrorKind, Client, ClientOptions, Token, UnprocessableReason};
pub use controller::{Controller, ControllerOptions};
pub use driver::{Config, ControllerBackend, DriverError, driver};
pub use metadata::Metadata;
pub use names::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME, REGION_KEY};
pub use node::{NodeDevices, NodeOptions, NodeSetupError};
