//! A client that sends the socket's path as the authority, as kubelet does when it registers a plugin. The request is
//! written as bytes, because our own client cannot send it.

#![allow(clippy::unwrap_used)] // test helpers may panic

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use wharf_csi::AnyAuthority;
use wharf_csi::registration::registration_server::{Registration, RegistrationServer};
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

struct Plugin;

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo::default()))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream];
    bytes.extend(payload);
    bytes
}

/// A literal field without indexing, whose name is in the static table.
fn field(index: u8, value: &str) -> Vec<u8> {
    let mut bytes = if index < 15 { vec![index] } else { vec![15, index - 15] };
    bytes.push(u8::try_from(value.len()).unwrap());
    bytes.extend(value.as_bytes());
    bytes
}

#[tokio::test]
async fn socket_path_as_authority_is_accepted() {
    for authority in ["%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fa-reg.sock", "/run/a.sock", "localhost"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let callers = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let callers = callers.map(|accepted| accepted.map(AnyAuthority::new));
        let server =
            tokio::spawn(Server::builder().serve_with_incoming(RegistrationServer::new(Plugin), callers));

        // POST and http, then :authority, :path and content-type by their index in the static table.
        let mut fields = vec![0x83, 0x86];
        fields.extend(field(1, authority));
        fields.extend(field(4, "/pluginregistration.Registration/GetInfo"));
        fields.extend(field(31, "application/grpc"));
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        request.extend(frame(4, 0, 0, &[]));
        request.extend(frame(HEADERS, 4, 1, &fields));
        request.extend(frame(0, 1, 1, &[0; 5]));
        stream.write_all(&request).await.unwrap();

        let first_frame = async {
            loop {
                let mut header = [0; 9];
                stream.read_exact(&mut header).await.unwrap();
                let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                let mut payload = vec![0; length as usize];
                stream.read_exact(&mut payload).await.unwrap();
                if [HEADERS, RST_STREAM].contains(&header[3]) {
                    return header[3];
                }
            }
        };
        let first_frame = tokio::time::timeout(Duration::from_secs(10), first_frame).await.unwrap();
        assert_eq!(first_frame, HEADERS, "{authority}: the server must respond, not reset the stream");
        server.abort();
    }
}
