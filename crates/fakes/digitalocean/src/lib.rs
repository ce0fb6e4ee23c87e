//! A double of DigitalOcean's API and metadata service, for tests: volumes, snapshots, actions that take time,
//! limits, errors in its words, and faults on demand. As a program it is `wharf fake digitalocean`.
//!
//! Start at [`Fake::start`]. The rules are pure (`rules`), the state is plain data ([`State`]), the server is thin.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wharf_fake_digitalocean::{Fake, Fault, Options, What};
//!
//! let fake = Fake::start(Options::new().droplet(1, "nyc3")).await?;
//! fake.add_fault(Fault::new(What::ResetAfter).at("POST", "/v2/volumes").times(1));
//! println!("export DIGITALOCEAN_API_URL={}", fake.url());
//! assert!(fake.requests().is_empty());
//! fake.stop().await?;
//! # Ok(())
//! # }
//! ```

mod answer;
mod cloud;
mod control;
mod devices;
mod fake;
mod faults;
mod knobs;
mod limits;
mod metadata;
mod options;
mod paging;
mod render;
mod request;
mod requests;
mod rules;
mod server;
mod state;
mod store;
mod time;

pub use devices::DevicesError;
pub use fake::{Fake, StartError, StopError};
pub use faults::{Fault, What};
pub use knobs::{Half, HalfAttached, Knobs};
pub use options::{DropletOptions, Options};
pub use requests::Logged;
pub use state::{Action, Attachment, Droplet, Kind, Snapshot, State, Status, Volume};
pub use store::StoreError;
pub use time::Millis;
