//! The plugin manager's steps. Each leaves in [`World`](super::world::World) what came of it, for the next look; one
//! that failed leaves a pause.
//!
//! A crash between any two writes: nothing here is remembered, so all sockets are registered anew, which writes what
//! is missing.

use std::path::Path;

use wharf_csi::SocketIdentity;

use super::Plugin;
use super::calls::{self, AskError, RegisterError};
use super::manager::Manager;
use super::metrics::Outcome;
use super::validate::validate;
use super::view::{Driver, Entries, NodeAnswer};
use super::world::{Holding, Registration};

impl Manager {
    fn failed(&self, path: &Path) {
        let now = self.now();
        self.world().failed(path, now, |failures| self.backoff.after(failures));
    }

    /// GetInfo, validate, ask the driver, write, tell.
    pub(super) async fn register(&self, path: &Path) {
        let Some(identity) = self.world().found(path) else { return };
        match self.try_register(path, &identity).await {
            Ok(plugin) => {
                tracing::info!(
                    driver = plugin.name,
                    version = plugin.vendor_version,
                    node_id = plugin.node_id,
                    max_volumes = plugin.max_volumes,
                    "registered"
                );
                self.plugins.metrics.count(Outcome::Registered);
                self.tell(path).await;
            }
            Err(error) => {
                tracing::warn!(socket = %path.display(), %error, "not registered");
                let silent = matches!(error, RegisterError::Silent { .. });
                self.plugins.metrics.count(if silent { Outcome::Silent } else { Outcome::Refused });
                if !silent && let Err(status) = calls::notify(path, Err(&error)).await {
                    let error = status.message();
                    tracing::debug!(socket = %path.display(), error, "the plugin cannot be told");
                }
                let mut world = self.world();
                // What was registered before stays for its moment: the rules say how long.
                if world.registration(path).is_none() {
                    let holding = if silent { Holding::Silent(identity) } else { Holding::Refused(identity) };
                    world.hold(path, holding);
                }
                drop(world);
                self.failed(path);
            }
        }
    }

    async fn try_register(&self, path: &Path, identity: &SocketIdentity) -> Result<Plugin, RegisterError> {
        let info = calls::get_info(path).await?;
        let version = validate(&info)?;
        let before = self.world().registration(path).map(|before| before.plugin.name.clone());
        if before.is_some_and(|before| before != info.name) {
            // Another driver has come to this path; the one that was there is gone.
            self.deregister(path).await;
        }
        self.world().may_claim(path, &info.name, &version)?;
        let endpoint = calls::endpoint(&info, path)?;
        let asked = SocketIdentity::of(endpoint.path()).ok();
        let answered = self.wishes(&info.name);
        let asked_at = self.now();
        let plugin = Plugin::new(info.name, endpoint);
        let plugin = match calls::ask(&plugin, self.settings.verify_name).await {
            Ok(plugin) => plugin,
            Err(error) => {
                self.take_out(path, &plugin.name).await;
                return Err(error.into());
            }
        };
        self.world().claim(path, &plugin.name, version)?;
        if let Err(error) = self.node_info.install(&plugin.name, &NodeAnswer::from(&plugin)).await {
            self.take_out(path, &plugin.name).await;
            return Err(error.into());
        }
        let registration = Registration {
            identity: identity.clone(),
            plugin: plugin.clone(),
            now: asked.clone(),
            asked,
            asked_at,
            answered,
            written: true,
            told: false,
        };
        {
            let mut world = self.world();
            world.hold(path, Holding::Registered(Box::new(registration)));
            world.succeeded(path);
        }
        self.plugins.put(plugin.clone());
        Ok(plugin)
    }

    /// Any error of a registration is a full unregister; unless the name is another socket's, or this
    /// one's from before, of which the rules say when it ends.
    async fn take_out(&self, path: &Path, driver: &str) {
        let ours = {
            let world = self.world();
            world.is_free_for(path, driver) && world.registration(path).is_none()
        };
        if !ours {
            return;
        }
        if let Err(error) = self.node_info.uninstall(driver).await {
            tracing::debug!(driver, %error, "entries of a driver that is not registered may be left");
        }
        let woken = self.world().release(path, driver);
        self.add(woken);
    }

    /// Socket removed: the driver goes from here, its entry from CSINode, its node id from the Node.
    pub(super) async fn deregister(&self, path: &Path) {
        let driver = match self.world().holding(path) {
            Some(Holding::Registered(registration)) => registration.plugin.name.clone(),
            Some(Holding::Leaving(driver)) => driver.clone(),
            _ => return,
        };
        self.world().hold(path, Holding::Leaving(driver.clone()));
        self.plugins.remove(&driver);
        match self.node_info.uninstall(&driver).await {
            Ok(()) => {
                tracing::info!(driver, "not registered any more");
                self.plugins.metrics.count(Outcome::Deregistered);
                let woken = {
                    let mut world = self.world();
                    world.hold(path, Holding::Nothing);
                    world.succeeded(path);
                    world.release(path, &driver)
                };
                self.add(woken);
            }
            Err(error) => {
                tracing::warn!(driver, %error, "the driver is gone, and its entries are not");
                self.failed(path);
            }
        }
    }

    /// Tells the plugin that it is registered.
    pub(super) async fn tell(&self, path: &Path) {
        match calls::notify(path, Ok(())).await {
            Ok(()) => {
                let mut world = self.world();
                if let Some(registration) = world.registration_mut(path) {
                    registration.told = true;
                }
                world.succeeded(path);
            }
            Err(status) => {
                let error = format!("{:?}: {}", status.code(), status.message());
                tracing::warn!(socket = %path.display(), error, "registered, and the plugin cannot be told");
                self.failed(path);
            }
        }
    }

    /// Asks the driver again; what it says of this node is written by the next step.
    pub(super) async fn ask(&self, path: &Path) {
        let Some(before) = self.world().registration(path).cloned() else { return };
        // Its predecessor may still answer on the connection that was made to it.
        let plugin = match before.driver() {
            Driver::Restarted => Plugin { client: super::connect(&before.plugin.endpoint), ..before.plugin },
            Driver::Same | Driver::Away => before.plugin,
        };
        let asked = SocketIdentity::of(plugin.endpoint.path()).ok();
        let (asked_at, answered) = (self.now(), self.wishes(&plugin.name));
        match calls::ask(&plugin, self.settings.verify_name).await {
            Ok(answer) => {
                let changed = NodeAnswer::from(&answer) != NodeAnswer::from(&plugin);
                if changed {
                    let (driver, max_volumes) = (&answer.name, answer.max_volumes);
                    tracing::info!(driver, max_volumes, "the driver says other things of this node");
                }
                {
                    let mut world = self.world();
                    let Some(registration) = world.registration_mut(path) else { return };
                    registration.plugin = answer.clone();
                    registration.written &= !changed;
                    (registration.now, registration.asked) = (asked.clone(), asked);
                    (registration.asked_at, registration.answered) = (asked_at, answered);
                    world.succeeded(path);
                }
                self.plugins.put(answer);
            }
            Err(error @ AskError::Name { .. }) => {
                tracing::error!(%error, "not the driver that was registered");
                self.deregister(path).await;
                self.failed(path);
            }
            Err(error) => {
                tracing::warn!(%error, "the driver does not answer; what it said before stays");
                self.failed(path);
            }
        }
    }

    /// Writes what the driver says.
    pub(super) async fn write(&self, path: &Path) {
        let Some(plugin) = self.world().registration(path).map(|known| known.plugin.clone()) else { return };
        match self.node_info.install(&plugin.name, &NodeAnswer::from(&plugin)).await {
            Ok(()) => {
                let seen = {
                    let mut world = self.world();
                    let Some(registration) = world.registration_mut(path) else { return };
                    registration.written = true;
                    let seen = self.entries(registration);
                    world.succeeded(path);
                    seen
                };
                if seen != Entries::Right {
                    // A server that takes it and does not keep it would be asked without end.
                    tracing::warn!(driver = plugin.name, "what was written of the driver is not there");
                    self.failed(path);
                }
            }
            Err(error) => {
                tracing::warn!(driver = plugin.name, %error, "what the driver says is not written");
                self.failed(path);
            }
        }
    }
}
