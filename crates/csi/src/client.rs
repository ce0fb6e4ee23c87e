//! A client for any CSI socket. It connects when it is first used and again whenever the driver was
//! restarted, and every call has a deadline: a driver that hangs gives DEADLINE_EXCEEDED, one that is not
//! there UNAVAILABLE.

use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;

use crate::Endpoint;
use crate::deadline::{Calls, Way};
use crate::here::Here;
use crate::registration::registration_client::RegistrationClient;
use crate::v1::controller_client::ControllerClient;
use crate::v1::group_controller_client::GroupControllerClient;
use crate::v1::identity_client::IdentityClient;
use crate::v1::node_client::NodeClient;
use crate::v1::snapshot_metadata_client::SnapshotMetadataClient;

/// Listings and changed blocks may be larger than gRPC's usual 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;
/// For callers that do not choose one.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A connection to a driver that repairs itself. Cloning it is cheap, and clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    way: Way,
    endpoint: Endpoint,
    deadline: Duration,
}

impl Client {
    /// A client for the driver at `endpoint`, with a deadline of a minute for each call. Connects to nothing
    /// yet; must be called within a tokio runtime.
    pub fn new(endpoint: &Endpoint) -> Self {
        let path = endpoint.path().to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The authority that gRPC sends over unix sockets everywhere; some servers refuse others.
        let origin = Uri::from_static("http://localhost");
        let channel = Channel::builder(origin).connect_with_connector_lazy(connect);
        Self { way: Way::Socket(channel), endpoint: endpoint.clone(), deadline: DEFAULT_DEADLINE }
    }

    /// A client for a driver in this process, without a socket: what would have come over it goes to this service.
    /// `endpoint` is what errors call it.
    pub fn here(service: Here, endpoint: &Endpoint) -> Self {
        Self { way: Way::Here(service), endpoint: endpoint.clone(), deadline: DEFAULT_DEADLINE }
    }

    /// The same connection, with another deadline for each call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The driver's Identity service.
    pub fn identity(&self) -> IdentityClient<Calls> {
        IdentityClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's Controller service.
    pub fn controller(&self) -> ControllerClient<Calls> {
        ControllerClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's GroupController service.
    pub fn group_controller(&self) -> GroupControllerClient<Calls> {
        GroupControllerClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's SnapshotMetadata service.
    pub fn snapshot_metadata(&self) -> SnapshotMetadataClient<Calls> {
        SnapshotMetadataClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The driver's Node service.
    pub fn node(&self) -> NodeClient<Calls> {
        NodeClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Kubelet's plugin registration service.
    pub fn registration(&self) -> RegistrationClient<Calls> {
        RegistrationClient::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn calls(&self) -> Calls {
        Calls::new(self.way.clone(), self.endpoint.clone(), self.deadline)
    }
}
