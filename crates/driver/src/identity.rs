//! The Identity service: who the driver is, what it serves, and whether it really can.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};

/// Whether the driver can do its work; if not, why.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How long the driver may take to find out whether it can do its work.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks on a thread that may block, and not for ever: a disk that hangs must not hold up every other call.
pub(crate) async fn ask(ready: &Ready) -> Result<(), String> {
    let ready = ready.clone();
    let asked = tokio::task::spawn_blocking(move || ready());
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(format!("whether the driver can do its work was not found out: {error}")),
        Err(_) => Err(format!("the storage has not answered for {}s: look at its disk", PATIENCE.as_secs())),
    }
}

/// Answers from what the builder was given.
#[derive(Clone)]
pub(crate) struct IdentityService {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) services: Vec<service::Type>,
    pub(crate) expansion: Option<volume_expansion::Type>,
    pub(crate) ready: Ready,
}

#[tonic::async_trait]
impl v1::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.version.clone(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let services = self.services.iter().map(|kind| Type::Service(Service { r#type: (*kind).into() }));
        let expansion = self
            .expansion
            .iter()
            .map(|kind| Type::VolumeExpansion(VolumeExpansion { r#type: (*kind).into() }));
        let capabilities =
            services.chain(expansion).map(|kind| v1::PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        match ask(&self.ready).await {
            Ok(()) => Ok(Response::new(v1::ProbeResponse { ready: Some(true) })),
            Err(reason) => Err(Status::failed_precondition(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_is_told_and_holds_up_nobody() {
        let (hang_up, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = std::sync::Mutex::new(hangs);
        let ready: Ready = Arc::new(move || {
            let _ = hangs.lock().map(|hangs| hangs.recv());
            Ok(())
        });
        let other = async { "answered" };
        let (told, other) = tokio::join!(ask(&ready), other);
        assert!(told.unwrap_err().contains("look at its disk"));
        assert_eq!(other, "answered");
        drop(hang_up);
    }
}
