//! Routes calls to the services of a driver. Calls to other services fail with UNIMPLEMENTED.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _};
use wharf_csi::v1::controller_server::ControllerServer;
use wharf_csi::v1::group_controller_server::GroupControllerServer;
use wharf_csi::v1::identity_server::IdentityServer;
use wharf_csi::v1::node_server::NodeServer;
use wharf_csi::v1::snapshot_metadata_server::SnapshotMetadataServer;

use crate::Driver;
use crate::metrics::Metrics;
use crate::observe::Observed;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The services by full name.
#[derive(Clone)]
pub(crate) struct Routes {
    services: BTreeMap<&'static str, BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>>,
}

impl Routes {
    pub(super) fn new(driver: Driver, metrics: &Metrics) -> Self {
        let mut routes = Self::without_reflection(driver, metrics);
        routes.add_reflection();
        routes
    }

    pub(super) fn without_reflection(driver: Driver, metrics: &Metrics) -> Self {
        let Driver { identity, controller, group, snapshot_metadata, node, locks: _, gauges: _ } = driver;
        let mut routes = Self { services: BTreeMap::new() };
        let metrics = || metrics.clone();
        routes.add(IdentityServer::new(Observed { service: identity, metrics: metrics() }));
        if let Some(service) = controller {
            routes.add(ControllerServer::new(Observed { service, metrics: metrics() }));
        }
        if let Some(service) = group {
            routes.add(GroupControllerServer::new(Observed { service, metrics: metrics() }));
        }
        if let Some(service) = snapshot_metadata {
            routes.add(SnapshotMetadataServer::new(Observed { service, metrics: metrics() }));
        }
        if let Some(service) = node {
            routes.add(NodeServer::new(Observed { service, metrics: metrics() }));
        }
        routes
    }

    fn add<S>(&mut self, service: S)
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.services.insert(S::NAME, BoxCloneSyncService::new(service));
    }

    /// Adds reflection for the registered services, in both protocol versions that tools use.
    fn add_reflection(&mut self) {
        let names: Vec<&'static str> = self.services.keys().copied().collect();
        let builder = || {
            let described = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(wharf_csi::FILE_DESCRIPTOR_SET);
            names.iter().fold(described, |builder, name| builder.with_service_name(*name))
        };
        // Fails only if the descriptors of our own build are broken; then the driver runs without reflection.
        match (builder().build_v1(), builder().build_v1alpha()) {
            (Ok(v1), Ok(v1alpha)) => {
                self.add(v1);
                self.add(v1alpha);
            }
            (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "failed to enable gRPC reflection"),
        }
    }
}

impl Service<Request<Body>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        match service_name(request.uri().path()).and_then(|name| self.services.get(name)) {
            Some(service) => Box::pin(service.clone().oneshot(request)),
            None => {
                let status = Status::unimplemented("this driver does not implement this service");
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

/// The service name in a path: `csi.v1.Node` for `/csi.v1.Node/NodeGetInfo`.
fn service_name(path: &str) -> Option<&str> {
    path.strip_prefix('/')?.split_once('/').map(|(service, _)| service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_name_is_the_first_of_two_path_segments() {
        for (path, name) in [
            ("/csi.v1.Node/NodeGetInfo", Some("csi.v1.Node")),
            ("/csi.v1.Node", None),
            ("csi.v1.Node/x", None),
            ("/", None),
            ("//", Some("")),
        ] {
            assert_eq!(service_name(path), name, "{path}");
        }
    }
}
