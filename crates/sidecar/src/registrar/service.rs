//! What kubelet calls on the registration socket.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use wharf_csi::registration::registration_server::Registration;
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// The only version of the registration that there is.
const SUPPORTED_VERSION: &str = "1.0.0";

/// What kubelet said, with its reason for a no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing.
    Nothing,
    /// Registered.
    Yes,
    /// Refused.
    No(String),
}

/// The service behind one socket. Kubelet's words go into a channel of that socket, so that those of an
/// earlier one do not count.
pub(super) struct Service {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) said: watch::Sender<Said>,
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
        let said = if plugin_registered { Said::Yes } else { Said::No(error) };
        self.said.send_replace(said);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
