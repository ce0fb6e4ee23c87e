//! Serving a driver: identity, Probe, metrics, reflection, the socket.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tonic::Code;
use tonic::transport::Channel;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use wharf_csi::v1;
use wharf_csi::v1::plugin_capability::{Type, service, volume_expansion};
use wharf_driver::ServeOptions;

use crate::create;
use crate::memory::{Memory, Served};

#[tokio::test]
async fn identity_is_derived_from_the_traits() {
    let topology = [("test/node".to_owned(), "n1".to_owned())].into();
    let served = Served::start(Memory::new().driver().topology(topology), ServeOptions::default()).await;
    assert_eq!(std::fs::metadata(served.endpoint.path()).unwrap().mode() & 0o777, 0o600);
    let info =
        served.client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("memory.test.wharf.dev", "1.2.3"));
    let request = v1::GetPluginCapabilitiesRequest {};
    let response = served.client.identity().get_plugin_capabilities(request).await.unwrap().into_inner();
    let (mut services, mut expansions) = (Vec::new(), Vec::new());
    for capability in response.capabilities {
        match capability.r#type {
            Some(Type::Service(service)) => services.push(service.r#type()),
            Some(Type::VolumeExpansion(expansion)) => expansions.push(expansion.r#type()),
            None => panic!("a capability without a type"),
        }
    }
    assert_eq!(
        services,
        [
            service::Type::ControllerService,
            service::Type::VolumeAccessibilityConstraints,
            service::Type::SnapshotAccessibilityConstraints,
            service::Type::GroupControllerService,
            service::Type::SnapshotMetadataService,
        ]
    );
    assert_eq!(expansions, [volume_expansion::Type::Online]);
}

/// A free port. Another process could take it in between, which is unlikely on loopback in a test.
async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn probe_and_healthz_report_readiness_and_metrics_count_requests() {
    let works = Arc::new(AtomicBool::new(true));
    let checked = works.clone();
    let ready =
        move || if checked.load(Ordering::Relaxed) { Ok(()) } else { Err("the pool is gone".to_owned()) };
    let address = free_address().await;
    let options = ServeOptions { metrics_listen: Some(address) };
    let served = Served::start(Memory::new().driver().ready(Arc::new(ready)), options).await;

    let probe = || async { served.client.identity().probe(v1::ProbeRequest {}).await };
    assert_eq!(probe().await.unwrap().into_inner().ready, Some(true));
    assert!(get(address, "GET /healthz").await.starts_with("HTTP/1.1 200"));
    works.store(false, Ordering::Relaxed);
    let status = probe().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "the pool is gone"));
    let health = get(address, "GET /healthz").await;
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("the pool is gone"), "{health}");

    served.client.controller().create_volume(create("a")).await.unwrap();
    served.client.controller().create_volume(create("")).await.unwrap_err();
    let metrics = get(address, "GET /metrics").await;
    for line in [
        "csi_requests_total{method=\"CreateVolume\",code=\"Ok\"} 1",
        "csi_requests_total{method=\"CreateVolume\",code=\"InvalidArgument\"} 1",
        "csi_requests_total{method=\"Probe\",code=\"FailedPrecondition\"} 1",
        "csi_request_seconds_count{method=\"CreateVolume\"} 2",
        "csi_requests_in_flight 0",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(get(address, "GET /").await.starts_with("HTTP/1.1 404"));
    assert!(get(address, "POST /metrics").await.starts_with("HTTP/1.1 405"));
}

#[tokio::test]
async fn reflection_lists_the_served_services() {
    let served = Served::start(Memory::new().driver(), ServeOptions::default()).await;
    let path = served.endpoint.path().to_owned();
    let connect = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Channel::from_static("http://localhost").connect_with_connector_lazy(connect);
    let request = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let mut responses = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    let response = responses.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = response else { panic!("{response:?}") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata"]
    {
        assert!(names.iter().any(|found| found == name), "{name} is missing in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "csi.v1.Node"), "there is no node backend: {names:?}");
}
