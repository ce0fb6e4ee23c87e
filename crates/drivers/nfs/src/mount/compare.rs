//! Compares a mount of the mount table with a requested one, without access to the server.

use std::net::IpAddr;

use wharf_linux::Mount;

use super::{ParsedOptions, VersionChoice};

/// The server and port of an NFS mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceServer {
    /// Host name or address, without brackets.
    pub server: String,
    /// The address that the mount uses, if the mount table shows it.
    pub address: Option<IpAddr>,
    /// TCP port of the NFS service; `None` if the mount does not use TCP.
    pub port: Option<u16>,
}

/// The server of a mount; `None` if it is not an NFS mount.
pub fn server_of(mount: &Mount) -> Option<SourceServer> {
    if !matches!(mount.fs_type.as_str(), "nfs" | "nfs4") {
        return None;
    }
    let server = match mount.source.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?.0,
        None => mount.source.split_once(":/")?.0,
    };
    let option = |key| value(&mount.super_options, key);
    let tcp = option("proto").is_none_or(|proto| proto.starts_with("tcp"));
    let port = option("port").and_then(|port| port.parse().ok()).unwrap_or(2049);
    let address = option("addr").and_then(|address| address.parse().ok());
    Some(SourceServer { server: server.to_owned(), address, port: tcp.then_some(port) })
}

/// Whether two source columns name the same directory.
pub fn same_source(a: &str, b: &str) -> bool {
    let normal = |source: &str| -> String {
        let (server, path) = source.split_once(":/").unwrap_or((source, ""));
        // csi-driver-nfs passed an IPv6 address to the kernel as the user wrote it.
        let bare = server.trim_start_matches('[').trim_end_matches(']');
        let server = bare.parse::<IpAddr>().map_or_else(|_| server.to_owned(), |address| address.to_string());
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        format!("{server}:/{}", parts.join("/"))
    };
    normal(a) == normal(b)
}

/// How a mount differs from the requested options; `None` if a pod can use it. Only options that change what a pod can do
/// or see are compared: mounts of one export share others, such as timeo and rsize, with the first of them.
pub fn difference(
    mount: &Mount,
    options: &ParsedOptions,
    requested: &[String],
    read_only: bool,
) -> Option<String> {
    let found_ro = mount.options.iter().any(|option| option == "ro");
    let wanted_ro = read_only || options.read_only;
    if found_ro != wanted_ro {
        let name = |read_only| if read_only { "read-only" } else { "read-write" };
        return Some(format!("it is mounted {}, not {}", name(found_ro), name(wanted_ro)));
    }
    let shown = value(&mount.super_options, "vers");
    let wanted = match options.version {
        VersionChoice::Any => None,
        VersionChoice::AnyV4 => Some("4"),
        VersionChoice::Only(version) => Some(version.as_str()),
    };
    if let (Some(shown), Some(wanted)) = (shown, wanted) {
        let same = shown == wanted || (wanted == "4" && shown.starts_with("4."));
        if !same {
            return Some(format!("it is mounted with vers={shown}, not vers={wanted}"));
        }
    }
    let words: Vec<&str> = requested.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    let wanted_sec = words.iter().filter_map(|word| word.strip_prefix("sec=")).next_back();
    if let (Some(shown), Some(wanted)) = (value(&mount.super_options, "sec"), wanted_sec)
        && !wanted.split(':').any(|flavor| flavor == shown)
    {
        return Some(format!("it is mounted with sec={shown}, not sec={wanted}"));
    }
    const RETRIES: [&str; 3] = ["hard", "soft", "softerr"];
    let shown = mount.super_options.iter().map(String::as_str).find(|option| RETRIES.contains(option));
    let wanted = words.iter().rev().find(|word| RETRIES.contains(word));
    match (shown, wanted) {
        (Some(shown), Some(wanted)) if shown != *wanted => {
            Some(format!("it is mounted with {shown}, not {wanted}"))
        }
        _ => None,
    }
}

fn value<'a>(options: &'a [String], key: &str) -> Option<&'a str> {
    options.iter().find_map(|option| option.strip_prefix(key)?.strip_prefix('='))
}
