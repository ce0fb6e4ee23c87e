//! The gRPC service that kubelet calls on the registration socket.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use wharf_csi::registration::registration_server::Registration;
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// The only existing version of the registration API.
const SUPPORTED_VERSION: &str = "1.0.0";

/// Kubelet's last NotifyRegistrationStatus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notification {
    /// None yet.
    None,
    /// The driver is registered.
    Registered,
    /// The registration failed with this error.
    Failed(String),
}

/// The service behind one socket. Each socket has its own channel, so that notifications for an earlier socket do
/// not count.
pub(super) struct Service {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) notification: watch::Sender<Notification>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![SUPPORTED_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let notification =
            if plugin_registered { Notification::Registered } else { Notification::Failed(error) };
        self.notification.send_replace(notification);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
