use std::path::Path;
use std::sync::Mutex;

use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Status};
use wharf_csi::v1::identity_server::{Identity, IdentityServer};
use wharf_csi::{Endpoint, bind};

use super::*;

/// A driver with a name and services that is ready from the second Probe on.
struct Named {
    name: &'static str,
    services: Vec<PluginService>,
    probes: Mutex<u32>,
}

#[tonic::async_trait]
impl Identity for Named {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let name = self.name.to_owned();
        Ok(Response::new(v1::GetPluginInfoResponse { name, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let capability = |service: &PluginService| v1::PluginCapability {
            r#type: Some(plugin_capability::Type::Service(plugin_capability::Service {
                r#type: *service as i32,
            })),
        };
        let capabilities = self.services.iter().map(capability).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let mut probes = self.probes.lock().unwrap();
        *probes += 1;
        Ok(Response::new(v1::ProbeResponse { ready: Some(*probes > 1) }))
    }
}

/// A driver in its own thread: stopping it closes its connections, as the exit of a process does.
pub(crate) struct Served {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) fn serve(socket: &Path, name: &'static str, services: &[PluginService]) -> Served {
    let endpoint: Endpoint = socket.to_str().unwrap().parse().unwrap();
    let service = Named { name, services: services.to_vec(), probes: Mutex::new(0) };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (listener, _file) = bind(&endpoint).unwrap();
            let incoming = UnixListenerStream::new(listener);
            let server = tonic::transport::Server::builder();
            tokio::select! {
                ended = server.serve_with_incoming(IdentityServer::new(service), incoming) => ended.unwrap(),
                _ = stopped => {}
            }
        });
    });
    Served { stop: Some(stop), thread: Some(thread) }
}

/// sidecars.md 1.0 "Connect", "Readiness", "Driver name": discovery waits for a driver that is missing or not
/// ready, reads a replaced driver again, and never exits.
#[tokio::test]
async fn discovery_waits_for_driver_and_reads_replaced_one() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let client = Client::new(&socket.to_str().unwrap().parse().unwrap());
    let metrics = Metrics::new();
    let discovery = tokio::spawn({
        let (client, metrics) = (client.clone(), metrics.clone());
        async move { Driver::discover(&client, &metrics, false).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!discovery.is_finished(), "no driver is running yet");
    let first = serve(&socket, "first.test", &[]);
    let driver = discovery.await.unwrap();
    assert_eq!((driver.name(), *driver.capabilities()), ("first.test", Capabilities::default()));
    drop(first);
    let _second = serve(&socket, "first.test", &[PluginService::VolumeAccessibilityConstraints]);
    let driver = Driver::discover(&client, &metrics, false).await;
    assert!(driver.capabilities().topology, "the same client reaches the replaced driver");
    let text = metrics.encode();
    assert!(text.contains(r#"driver_name="first.test",method_name="/csi.v1.Identity/Probe""#), "{text}");
}

/// An API server that stores one Lease, until it no longer answers.
pub(crate) fn lease_server(down: std::sync::Arc<Mutex<bool>>) -> wharf_cluster::Cluster {
    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let down = std::sync::Arc::clone(&down);
        async move {
            if *down.lock().unwrap() {
                std::future::pending::<()>().await;
            }
            let (status, body) = match *request.method() == http::Method::GET {
                true => (
                    404,
                    r#"{"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "role"}}"#
                        .into(),
                ),
                false => (200, request.into_body().collect().await.unwrap().to_bytes()),
            };
            let response = http::Response::builder().status(status).body(Full::<Bytes>::new(body));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        }
    });
    wharf_cluster::Cluster::with_client(kube::Client::new(service, "default"))
}

/// S-M1: every role calls the driver through this client.
#[tokio::test(start_paused = true)]
async fn running_call_is_cancelled_at_the_renew_deadline_and_none_starts_after() {
    let down = std::sync::Arc::new(Mutex::new(false));
    let cluster = lease_server(std::sync::Arc::clone(&down));
    let leadership = Leadership::start(&cluster, wharf_cluster::LeaseOptions::new("ns", "role", "one"));
    leadership.wait_acquired().await;
    let info = DriverInfo {
        name: "d.test".into(),
        capabilities: Capabilities::default(),
        node_topology: Segments::new(),
    };
    let driver = Driver::unreachable(info).fenced(Some(&leadership));
    *down.lock().unwrap() = true;
    let hour = Duration::from_secs(3600);
    let started = Instant::now();
    let call = |_| std::future::pending::<Result<Response<()>, Status>>();
    let cancelled = driver.controller("ControllerPublishVolume", hour, call).await;
    assert_eq!(cancelled.unwrap_err().code(), Code::Cancelled);
    assert!(started.elapsed() <= Duration::from_secs(10), "{:?}", started.elapsed());
    let refused = driver.controller("ControllerPublishVolume", hour, |_| async { Ok(Response::new(())) });
    assert_eq!(refused.await.unwrap_err().code(), Code::Cancelled);
}

/// sidecars.md 1.0 "Driver name": each declared capability sets its field.
#[test]
fn each_rpc_sets_its_capability() {
    use controller_service_capability::{Rpc, Type};
    let controller = |rpc: ControllerRpc| v1::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: rpc as i32 })),
    };
    type Field = fn(&Capabilities) -> bool;
    let table: [(ControllerRpc, Field); 11] = [
        (ControllerRpc::CreateDeleteVolume, |capabilities| capabilities.create_delete_volume),
        (ControllerRpc::PublishUnpublishVolume, |capabilities| capabilities.publish_unpublish_volume),
        (ControllerRpc::PublishReadonly, |capabilities| capabilities.publish_readonly),
        (ControllerRpc::ListVolumes, |capabilities| capabilities.list_volumes),
        (ControllerRpc::ListVolumesPublishedNodes, |capabilities| capabilities.list_volumes_published_nodes),
        (ControllerRpc::GetCapacity, |capabilities| capabilities.get_capacity),
        (ControllerRpc::CreateDeleteSnapshot, |capabilities| capabilities.create_delete_snapshot),
        (ControllerRpc::CloneVolume, |capabilities| capabilities.clone_volume),
        (ControllerRpc::ExpandVolume, |capabilities| capabilities.expand_volume),
        (ControllerRpc::ModifyVolume, |capabilities| capabilities.modify_volume),
        (ControllerRpc::SingleNodeMultiWriter, |capabilities| capabilities.single_node_multi_writer),
    ];
    for (rpc, _) in &table {
        let mut capabilities = Capabilities::default();
        capabilities.add_controller(&[controller(*rpc)]);
        let set: Vec<_> =
            table.iter().filter(|(_, field)| field(&capabilities)).map(|(rpc, _)| *rpc).collect();
        assert_eq!(set, [*rpc]);
    }
    let mut capabilities = Capabilities::default();
    let expand = node_service_capability::Rpc { r#type: NodeRpc::ExpandVolume as i32 };
    capabilities
        .add_node(&[v1::NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(expand)) }]);
    assert_eq!(capabilities, Capabilities { node_expand_volume: true, ..Capabilities::default() });
}
