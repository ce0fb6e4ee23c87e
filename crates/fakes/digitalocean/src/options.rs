//! Startup options of a fake.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::faults::Fault;
use crate::settings::FakeSettings;

/// Startup options of a fake. Not `Debug`, because it contains tokens.
#[derive(Clone)]
pub struct FakeOptions {
    /// Address of the API; port 0 for any.
    pub listen: SocketAddr,
    /// The state directory, with which a restarted fake continues. Without it, the state is not saved.
    pub state: Option<PathBuf>,
    /// Accepted tokens; any token if empty.
    pub tokens: Vec<String>,
    /// The droplets, each with its metadata service.
    pub droplets: Vec<DropletOptions>,
    /// Limits and delays.
    pub settings: FakeSettings,
    /// Initial faults.
    pub faults: Vec<Fault>,
    /// Attached volumes appear as loop devices, linked as `DIR/<droplet id>/scsi-0DO_Volume_<name>`. Needs root and a
    /// state directory, which then holds their data.
    pub attach_real: Option<PathBuf>,
}

/// An initial droplet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropletOptions {
    /// Its number.
    pub id: u64,
    /// The slug of its region.
    pub region: String,
    /// Its name; derived from its number if not given.
    pub name: Option<String>,
    /// Address of its metadata service; port 0 for any.
    pub metadata: SocketAddr,
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl FakeOptions {
    /// On any port of the loopback interface, with an empty state.
    pub fn new() -> Self {
        Self {
            listen: ANY,
            state: None,
            tokens: Vec::new(),
            droplets: Vec::new(),
            settings: FakeSettings::default(),
            faults: Vec::new(),
            attach_real: None,
        }
    }

    /// Adds a droplet.
    pub fn droplet(mut self, id: u64, region: &str) -> Self {
        self.droplets.push(DropletOptions { id, region: region.to_owned(), name: None, metadata: ANY });
        self
    }

    /// Adds an accepted token; other tokens are refused.
    pub fn token(mut self, token: &str) -> Self {
        self.tokens.push(token.to_owned());
        self
    }

    /// Changes the settings.
    pub fn settings(mut self, change: impl FnOnce(&mut FakeSettings)) -> Self {
        change(&mut self.settings);
        self
    }
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self::new()
    }
}
