//! The Identity service: the driver's name, its capabilities and its readiness.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};

/// Checks whether the driver is ready; the error is the reason why not.
pub type ReadinessCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How long a readiness check may take.
const READINESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the check on a blocking thread, with a timeout: a disk that hangs must not block other calls.
pub(crate) async fn check_ready(ready: &ReadinessCheck) -> Result<(), String> {
    let ready = ready.clone();
    let check = tokio::task::spawn_blocking(move || ready());
    match tokio::time::timeout(READINESS_TIMEOUT, check).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(format!("readiness check failed: {error}")),
        Err(_) => {
            Err(format!("the storage has not responded for {}s: check its disk", READINESS_TIMEOUT.as_secs()))
        }
    }
}

/// The Identity service, with the capabilities from the builder.
#[derive(Clone)]
pub(crate) struct IdentityService {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) services: Vec<service::Type>,
    pub(crate) expansion: Option<volume_expansion::Type>,
    pub(crate) ready: ReadinessCheck,
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
        match check_ready(&self.ready).await {
            Ok(()) => Ok(Response::new(v1::ProbeResponse { ready: Some(true) })),
            Err(reason) => Err(Status::failed_precondition(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hanging_readiness_check_times_out_and_blocks_no_other_call() {
        let (hang_up, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = std::sync::Mutex::new(hangs);
        let ready: ReadinessCheck = Arc::new(move || {
            let _ = hangs.lock().map(|hangs| hangs.recv());
            Ok(())
        });
        let other = async { "done" };
        let (result, other) = tokio::join!(check_ready(&ready), other);
        assert!(result.unwrap_err().contains("check its disk"));
        assert_eq!(other, "done");
        drop(hang_up);
    }
}
