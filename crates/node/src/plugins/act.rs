//! Steps of the plugin manager. Each stores its result in [`World`](super::world::World) for the next decision; a
//! failed step sets a backoff.
//!
//! Crash safety: no state is persisted. After a crash all sockets are registered again, which writes whatever is
//! missing.

use std::path::Path;

use wharf_csi::SocketIdentity;

use super::Plugin;
use super::calls::{self, QueryError, RegisterError};
use super::manager::Manager;
use super::metrics::Outcome;
use super::node_info::write::WriteError;
use super::validate::validate;
use super::view::{Driver, DriverNodeInfo, Entries};
use super::world::{Registration, SocketState};

impl Manager {
    fn failed(&self, path: &Path) {
        let now = self.now();
        self.world().failed(path, now, |failures| self.backoff.delay(failures));
    }

    /// GetInfo, validate, query the driver, write the entries, notify.
    pub(super) async fn register(&self, path: &Path) {
        let Some(identity) = self.world().found(path) else { return };
        match self.try_register(path, &identity).await {
            Ok(plugin) => {
                tracing::info!(
                    driver = plugin.name,
                    version = plugin.vendor_version,
                    node_id = plugin.node_id,
                    max_volumes = plugin.max_volumes,
                    "registered driver"
                );
                self.plugins.metrics.count(Outcome::Registered);
                self.notify(path).await;
            }
            Err(error) => {
                tracing::warn!(socket = %path.display(), %error, "failed to register driver");
                let get_info_failed = matches!(error, RegisterError::GetInfo { .. });
                self.plugins.metrics.count(if get_info_failed {
                    Outcome::GetInfoFailed
                } else {
                    Outcome::Refused
                });
                if !get_info_failed && let Err(status) = calls::notify(path, Err(&error)).await {
                    let error = status.message();
                    tracing::debug!(socket = %path.display(), error, "NotifyRegistrationStatus failed");
                }
                let mut world = self.world();
                // An earlier registration at this path stays for its grace period: the rules decide when it ends.
                if world.registration(path).is_none() {
                    let state = if get_info_failed {
                        SocketState::GetInfoFailed(identity)
                    } else {
                        SocketState::Refused(identity)
                    };
                    world.set_state(path, state);
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
            // Another driver took over this path; the one that was there is gone.
            self.deregister(path).await;
        }
        self.world().check_name(path, &info.name, &version)?;
        let endpoint = calls::endpoint(&info, path)?;
        let queried_socket = SocketIdentity::of_path(endpoint.path()).ok();
        let refreshes_served = self.refresh_requests(&info.name);
        let queried_at = self.now();
        let plugin = Plugin::new(info.name, endpoint);
        let plugin = match calls::query(&plugin, self.settings.verify_name).await {
            Ok(plugin) => plugin,
            Err(error) => {
                self.roll_back(path, &plugin.name).await;
                return Err(error.into());
            }
        };
        self.world().claim(path, &plugin.name, version)?;
        if let Err(error) = self.install(&plugin).await {
            self.roll_back(path, &plugin.name).await;
            return Err(error.into());
        }
        let registration = Registration {
            identity: identity.clone(),
            plugin: plugin.clone(),
            now: queried_socket.clone(),
            queried_socket,
            queried_at,
            refreshes_served,
            written: true,
            notified: false,
        };
        {
            let mut world = self.world();
            world.set_state(path, SocketState::Registered(Box::new(registration)));
            world.succeeded(path);
        }
        self.plugins.insert(plugin.clone());
        Ok(plugin)
    }

    /// Rolls back a failed registration completely, unless the name belongs to another socket or to an earlier
    /// registration of this one, which the rules end.
    async fn roll_back(&self, path: &Path, driver: &str) {
        let ours = {
            let world = self.world();
            world.is_available_to(path, driver) && world.registration(path).is_none()
        };
        if !ours {
            return;
        }
        if let Err(error) = self.node_info.uninstall(driver).await {
            tracing::debug!(driver, %error, "failed to remove entries of unregistered driver");
        }
        let woken = self.world().release_name(path, driver);
        self.add(woken);
    }

    /// Socket removed: deregisters the driver, removes its entry from CSINode and its node id from the Node.
    pub(super) async fn deregister(&self, path: &Path) {
        let driver = match self.world().state(path) {
            Some(SocketState::Registered(registration)) => registration.plugin.name.clone(),
            Some(SocketState::Deregistering(driver)) => driver.clone(),
            _ => return,
        };
        self.world().set_state(path, SocketState::Deregistering(driver.clone()));
        self.plugins.remove(&driver);
        match self.node_info.uninstall(&driver).await {
            Ok(()) => {
                tracing::info!(driver, "deregistered driver");
                self.plugins.metrics.count(Outcome::Deregistered);
                let woken = {
                    let mut world = self.world();
                    world.set_state(path, SocketState::Pending);
                    world.succeeded(path);
                    world.release_name(path, &driver)
                };
                self.add(woken);
            }
            Err(error) => {
                tracing::warn!(driver, %error, "deregistered driver, but failed to remove its Node and CSINode entries");
                self.failed(path);
            }
        }
    }

    /// Notifies the plugin that it is registered.
    pub(super) async fn notify(&self, path: &Path) {
        match calls::notify(path, Ok(())).await {
            Ok(()) => {
                let mut world = self.world();
                if let Some(registration) = world.registration_mut(path) {
                    registration.notified = true;
                }
                world.succeeded(path);
            }
            Err(status) => {
                let error = format!("{:?}: {}", status.code(), status.message());
                tracing::warn!(socket = %path.display(), error, "registered driver, but NotifyRegistrationStatus failed");
                self.failed(path);
            }
        }
    }

    /// Queries the driver again; the next step writes its node info.
    pub(super) async fn query(&self, path: &Path) {
        let Some(before) = self.world().registration(path).cloned() else { return };
        // A restarted driver gets a new connection: the old process may still respond on the old one.
        let plugin = match before.driver() {
            Driver::Restarted => Plugin { client: super::connect(&before.plugin.endpoint), ..before.plugin },
            Driver::Same | Driver::Absent => before.plugin,
        };
        let queried_socket = SocketIdentity::of_path(plugin.endpoint.path()).ok();
        let (queried_at, refreshes_served) = (self.now(), self.refresh_requests(&plugin.name));
        match calls::query(&plugin, self.settings.verify_name).await {
            Ok(info) => {
                let changed = DriverNodeInfo::from(&info) != DriverNodeInfo::from(&plugin);
                if changed {
                    let (driver, max_volumes) = (&info.name, info.max_volumes);
                    tracing::info!(driver, max_volumes, "driver's node info changed");
                }
                {
                    let mut world = self.world();
                    let Some(registration) = world.registration_mut(path) else { return };
                    registration.plugin = info.clone();
                    registration.written &= !changed;
                    (registration.now, registration.queried_socket) =
                        (queried_socket.clone(), queried_socket);
                    (registration.queried_at, registration.refreshes_served) = (queried_at, refreshes_served);
                    world.succeeded(path);
                }
                self.plugins.insert(info);
            }
            Err(error @ QueryError::Name { .. }) => {
                tracing::error!(%error, "another driver responds at the endpoint; deregistering");
                self.deregister(path).await;
                self.failed(path);
            }
            Err(error) => {
                tracing::warn!(%error, "failed to query driver; keeping its previous node info");
                self.failed(path);
            }
        }
    }

    async fn install(&self, plugin: &Plugin) -> Result<(), WriteError> {
        self.node_info.install(&plugin.name, &DriverNodeInfo::from(plugin)).await?;
        self.refresh_csi_node().await;
        Ok(())
    }

    /// Writes the driver's node info to Node and CSINode.
    pub(super) async fn write(&self, path: &Path) {
        let Some(plugin) = self.world().registration(path).map(|known| known.plugin.clone()) else { return };
        match self.install(&plugin).await {
            Ok(()) => {
                let seen = {
                    let mut world = self.world();
                    let Some(registration) = world.registration_mut(path) else { return };
                    registration.written = true;
                    let seen = self.entries(registration);
                    world.succeeded(path);
                    seen
                };
                if seen != Entries::Current {
                    // Back off: a server that accepts the write but does not store it would be called in a loop.
                    tracing::warn!(
                        driver = plugin.name,
                        "wrote driver's node info, but the entries do not show it"
                    );
                    self.failed(path);
                }
            }
            Err(error) => {
                tracing::warn!(driver = plugin.name, %error, "failed to write driver's node info");
                self.failed(path);
            }
        }
    }
}
