//! DigitalOcean Block Storage as a CSI driver: takes over from `dobs.csi.digitalocean.com`.
//!
//! The client half: [`Client`] speaks to the API within its limits, [`Attachments`] attaches, detaches and
//! resizes and says when that is done, [`Metadata`] tells a droplet who it is. The node half: [`NodeDevices`]
//! finds a volume's device without a token.

pub mod actions;
pub mod api;
mod chance;
pub mod client;
pub mod metadata;
mod names;
mod node;
mod size;

pub use actions::{Attachments, OperationError};
pub use client::{ApiError, Client, ClientOptions, Kind, Refused, Token};
pub use metadata::Metadata;
pub use names::{DESCRIPTION, DRIVER_NAME, LEGACY_DRIVER_NAME, REGION_KEY};
pub use node::{NodeDevices, NodeOptions, NodeSetupError};
