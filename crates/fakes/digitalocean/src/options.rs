//! How a fake is to start.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::faults::Fault;
use crate::knobs::Knobs;

/// How a fake is to start. Not `Debug`: it has tokens.
#[derive(Clone)]
pub struct Options {
    /// Where the API is served; port 0 for any.
    pub listen: SocketAddr,
    /// The directory that keeps the state, so that a fake started again goes on with it. Without, everything is
    /// forgotten.
    pub state: Option<PathBuf>,
    /// The tokens that are let in; any if there are none.
    pub tokens: Vec<String>,
    /// The droplets that there are, each with its metadata service.
    pub droplets: Vec<DropletOptions>,
    /// Limits and delays.
    pub knobs: Knobs,
    /// Faults that are there from the start.
    pub faults: Vec<Fault>,
    /// Attached volumes appear as loop devices, linked as `DIR/<droplet id>/scsi-0DO_Volume_<name>`. Needs a
    /// directory for the state, which then holds their bytes, and root.
    pub attach_real: Option<PathBuf>,
}

/// A droplet that is there from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropletOptions {
    /// Its number.
    pub id: u64,
    /// The slug of its region.
    pub region: String,
    /// Its name; made of its number if not given.
    pub name: Option<String>,
    /// Where its metadata service is; port 0 for any.
    pub metadata: SocketAddr,
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Options {
    /// On any port of the loopback interface, with nothing in it.
    pub fn new() -> Self {
        Self {
            listen: ANY,
            state: None,
            tokens: Vec::new(),
            droplets: Vec::new(),
            knobs: Knobs::default(),
            faults: Vec::new(),
            attach_real: None,
        }
    }

    /// With one droplet more.
    pub fn droplet(mut self, id: u64, region: &str) -> Self {
        self.droplets.push(DropletOptions { id, region: region.to_owned(), name: None, metadata: ANY });
        self
    }

    /// With this token, and no others that were not given so.
    pub fn token(mut self, token: &str) -> Self {
        self.tokens.push(token.to_owned());
        self
    }

    /// With changed knobs.
    pub fn knobs(mut self, change: impl FnOnce(&mut Knobs)) -> Self {
        change(&mut self.knobs);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
