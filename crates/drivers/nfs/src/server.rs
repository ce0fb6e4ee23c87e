//! NFS servers: name resolution, the RPC NULL call, and what is known about each server.
