//! NFS servers: name resolution, the RPC NULL call, and what is known about each server.
//!
//! [`Servers::check`] is called before anything that mounts: it finds an address that answers, or fails by its deadline
//! with the reason. It records since when a server has been unreachable, for health.

mod daemons;
mod resolve;
mod rpc;
mod state;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

pub use daemons::Seen;
pub use state::{ServerHealth, Unreachable};

use self::state::ServerTable;
use crate::mount::{ParsedOptions, ServerFacts, SourceServer, Version};
use crate::worker::WorkerError;

/// The deadline of name resolution and NULL call together.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(2);

/// All servers that the driver has used.
#[derive(Debug, Default)]
pub struct Servers {
    table: Mutex<ServerTable>,
    seen: Seen,
}

/// How a NULL call ended.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The connection failed.
    #[error("failed to connect to {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    /// The connection broke.
    #[error("{0} closed the connection before it answered an RPC NULL call: {1}")]
    Broken(SocketAddr, std::io::Error),
    /// The response is not RPC.
    #[error("{0} did not answer an RPC NULL call with RPC: {1}; is this an NFS server?")]
    NotRpc(SocketAddr, rpc::DecodeError),
    /// No answer in time.
    #[error("{0} did not answer an RPC NULL call within {1:?}")]
    Silent(SocketAddr, Duration),
}

impl Servers {
    /// Servers on a node whose helper programs are looked up as `seen` says.
    pub fn new(seen: Seen) -> Self {
        Self { table: Mutex::default(), seen }
    }

    /// Resolves the server and waits for an answer to a NULL call; returns what a mount needs.
    pub async fn check(
        &self,
        server: &str,
        options: &ParsedOptions,
        deadline: Duration,
    ) -> Result<ServerFacts, WorkerError> {
        let port = Some(options.port).filter(|_| !options.no_probe);
        self.lock().used(server, port, SystemTime::now());
        let address = self.reachable_address(server, options, deadline).await?;
        let client_address = client_address(address).await;
        let known_version = self.lock().version(server);
        let daemons = self.seen.daemons(options).await;
        Ok(ServerFacts { address: address.ip(), client_address, known_version, daemons })
    }

    /// Whether the server answers a NULL call now; records the result.
    pub async fn answers(&self, server: &str, port: u16, deadline: Duration) -> bool {
        let Ok(mut options) = ParsedOptions::parse(&[]) else { return false };
        options.port = port;
        self.reachable_address(server, &options, deadline).await.is_ok()
    }

    /// Whether the server of a mount answers a NULL call now, at the address of the mount: a name that cannot be resolved says
    /// nothing about the server. A server that cannot be asked over TCP counts as answering.
    pub async fn mount_answers(&self, mount: &SourceServer, deadline: Duration) -> bool {
        match (mount.address, mount.port) {
            (_, None) => true,
            (None, Some(port)) => self.answers(&mount.server, port, deadline).await,
            (Some(address), Some(port)) => {
                self.lock().used(&mount.server, Some(port), SystemTime::now());
                let address = SocketAddr::new(address, port);
                let answer = null_call(address, deadline).await.map(|()| address);
                self.record(&mount.server, answer.map_err(|error| error.to_string())).is_ok()
            }
        }
    }

    /// Asks a server that was used before whether it answers.
    pub async fn recheck(&self, server: &str, deadline: Duration) -> bool {
        let port = self.lock().port(server);
        match port {
            Some(port) => self.answers(server, port, deadline).await,
            // A transport that cannot be asked.
            None => true,
        }
    }

    async fn reachable_address(
        &self,
        server: &str,
        options: &ParsedOptions,
        deadline: Duration,
    ) -> Result<SocketAddr, WorkerError> {
        let found = timeout(deadline, first_answer(server, options, deadline)).await;
        let found = found.unwrap_or_else(|_| {
            Err(format!("its name was not resolved, or it did not answer, within {deadline:?}"))
        });
        self.record(server, found)
    }

    /// Records the result of a NULL call.
    fn record(&self, server: &str, result: Result<SocketAddr, String>) -> Result<SocketAddr, WorkerError> {
        let now = SystemTime::now();
        match result {
            Ok(answer) => {
                if self.lock().answered(server, now) {
                    tracing::info!(server, "NFS server answers again");
                }
                Ok(answer)
            }
            Err(reason) => {
                if self.lock().failed(server, &reason, now) {
                    tracing::warn!(server, error = reason, "NFS server is not reachable");
                }
                Err(WorkerError::Unreachable { server: server.to_owned(), reason })
            }
        }
    }

    /// Records that a mount succeeded, and the version that it negotiated, if it did.
    pub fn mounted(&self, server: &str, version: Option<Version>) {
        self.lock().mounted(server, version, SystemTime::now());
    }

    /// Records that requests to the server time out although it may answer NULL calls.
    pub fn timed_out(&self, server: &str, reason: &str) {
        self.lock().failed(server, reason, SystemTime::now());
    }

    /// What is known about a server; `None` if it was never used.
    pub fn health(&self, server: &str) -> Option<ServerHealth> {
        self.lock().health(server)
    }

    /// All servers that did not answer when they were last used.
    pub fn unreachable(&self) -> Vec<Unreachable> {
        self.lock().unreachable()
    }

    /// Forgets servers that nothing has used for a while, except those of mounts.
    pub fn forget_unused(&self, mounted: &BTreeSet<String>) {
        self.lock().forget_unused(mounted, SystemTime::now());
    }

    /// All servers that were used.
    pub fn names(&self) -> Vec<String> {
        self.lock().names()
    }

    fn lock(&self) -> MutexGuard<'_, ServerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first address of the server that answers. The error has the reason of each address.
async fn first_answer(
    server: &str,
    options: &ParsedOptions,
    deadline: Duration,
) -> Result<SocketAddr, String> {
    let addresses = resolve::addresses(server, options.port).await?;
    let usable: Vec<SocketAddr> =
        addresses.into_iter().filter(|address| !options.only_v6 || address.is_ipv6()).collect();
    let Some(first) = usable.first().copied() else {
        return Err("it has no IPv6 address, which the mount option proto requires".to_owned());
    };
    if options.no_probe {
        return Ok(first);
    }
    let each = deadline / u32::try_from(usable.len()).unwrap_or(u32::MAX).max(1);
    let mut reasons = Vec::new();
    for address in usable {
        match null_call(address, each).await {
            Ok(()) => return Ok(address),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(reasons.join("; "))
}

/// Sends an RPC NULL call to the NFS program. Any valid RPC response is success, also "version not supported".
pub async fn null_call(address: SocketAddr, deadline: Duration) -> Result<(), ProbeError> {
    let call = rpc::Call::null(rpc::NFS_PROGRAM, 4);
    timeout(deadline, rpc_call(address, &call))
        .await
        .unwrap_or(Err(ProbeError::Silent(address, deadline)))
        .map(drop)
}

/// Sends one call over TCP and returns the results of the response. The caller sets the deadline.
async fn rpc_call(address: SocketAddr, call: &rpc::Call) -> Result<Vec<u8>, ProbeError> {
    let mut stream =
        TcpStream::connect(address).await.map_err(|error| ProbeError::Connect(address, error))?;
    let broken = |error| ProbeError::Broken(address, error);
    stream.write_all(&call.encode()).await.map_err(broken)?;
    let mut record = rpc::Record::default();
    let mut buffer = [0; 1024];
    loop {
        let read = stream.read(&mut buffer).await.map_err(broken)?;
        if read == 0 {
            return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let complete = record.push(&buffer[..read]).map_err(|error| ProbeError::NotRpc(address, error))?;
        if let Some(reply) = complete {
            return rpc::decode_reply(&reply, call.xid).map_err(|error| ProbeError::NotRpc(address, error));
        }
    }
}

/// The address of this node on the way to the server: the kernel chooses it for a connected UDP socket, and sends nothing.
async fn client_address(server: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if server.is_ipv6() { ([0_u16; 8], 0).into() } else { ([0_u8; 4], 0).into() };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(server).await.ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests;
