//! A fake of DigitalOcean's API and metadata service, for tests: volumes, snapshots, asynchronous actions, rate
//! limits, the API's own error messages, and fault injection. `fake-digitalocean` is the program.
//!
//! Start at [`FakeDigitalOcean::start`]. The rules are pure (`rules`), the state is plain data ([`State`]), the server is thin.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions, Fault, FaultEffect};
//!
//! let fake = FakeDigitalOcean::start(FakeOptions::new().droplet(1, "nyc3")).await?;
//! fake.add_fault(Fault::new(FaultEffect::ResetAfter).at("POST", "/v2/volumes").times(1));
//! println!("export DIGITALOCEAN_API_URL={}", fake.url());
//! assert!(fake.requests().is_empty());
//! fake.stop().await?;
//! # Ok(())
//! # }
//! ```

mod cloud;
mod control;
mod devices;
mod fake;
mod faults;
mod limits;
mod metadata;
mod options;
mod paging;
mod render;
mod request;
mod requests;
mod response;
mod rules;
mod server;
mod settings;
mod state;
mod store;
mod time;

pub use devices::DevicesError;
pub use fake::{FakeDigitalOcean, StartError, StopError};
pub use faults::{Fault, FaultEffect};
pub use options::{DropletOptions, FakeOptions};
pub use requests::LoggedRequest;
pub use settings::{FakeSettings, HalfAttached, HalfAttachedShape};
pub use state::{Action, Attachment, Droplet, Kind, Snapshot, State, Status, Volume};
pub use store::StoreError;
pub use time::Millis;
