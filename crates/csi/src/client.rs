//! A client for any CSI socket. It connects on first use and reconnects after a driver restart. Every call has a
//! deadline: a driver that hangs results in DEADLINE_EXCEEDED, a missing driver in UNAVAILABLE.

use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;

use crate::Endpoint;
use crate::deadline::{DeadlineChannel, Transport};
use crate::in_process::InProcessService;
use crate::registration::registration_client::RegistrationClient;
use crate::v1::controller_client::ControllerClient;
use crate::v1::group_controller_client::GroupControllerClient;
use crate::v1::identity_client::IdentityClient;
use crate::v1::node_client::NodeClient;
use crate::v1::snapshot_metadata_client::SnapshotMetadataClient;

/// Lists and changed blocks can exceed gRPC's default limit of 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;
/// The deadline of each call unless the caller sets one.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A connection to a driver that reconnects by itself. Clones are cheap and share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Transport,
    endpoint: Endpoint,
    deadline: Duration,
}

impl Client {
    /// A client for the driver at `endpoint`, with a deadline of one minute for each call. It connects on the first
    /// call. Must be called within a tokio runtime.
    pub fn new(endpoint: &Endpoint) -> Self {
        let path = endpoint.path().to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The authority that gRPC libraries send over unix sockets; some servers reject any other.
        let origin = Uri::from_static("http://localhost");
        let channel = Channel::builder(origin).connect_with_connector_lazy(connect);
        Self { transport: Transport::Socket(channel), endpoint: endpoint.clone(), deadline: DEFAULT_DEADLINE }
    }

    /// A client for a driver in this process: requests go to `service` instead of a socket. Errors name the driver by
    /// `endpoint`.
    pub fn in_process(service: InProcessService, endpoint: &Endpoint) -> Self {
        Self {
            transport: Transport::InProcess(service),
            endpoint: endpoint.clone(),
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// The same connection, with a different deadline for each call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The driver's Identity service.
    pub fn identity(&self) -> IdentityClient<DeadlineChannel> {
        IdentityClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's Controller service.
    pub fn controller(&self) -> ControllerClient<DeadlineChannel> {
        ControllerClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's GroupController service.
    pub fn group_controller(&self) -> GroupControllerClient<DeadlineChannel> {
        GroupControllerClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's SnapshotMetadata service.
    pub fn snapshot_metadata(&self) -> SnapshotMetadataClient<DeadlineChannel> {
        SnapshotMetadataClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's Node service.
    pub fn node(&self) -> NodeClient<DeadlineChannel> {
        NodeClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The kubelet plugin registration service.
    pub fn registration(&self) -> RegistrationClient<DeadlineChannel> {
        RegistrationClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn calls(&self) -> DeadlineChannel {
        DeadlineChannel::new(self.transport.clone(), self.endpoint.clone(), self.deadline)
    }
}
