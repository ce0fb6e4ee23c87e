//! Mount options of users, as the kernel wants them.

use super::{MountFailure, ServerFacts, Version};

/// Options for mount.nfs alone; the kernel rejects them. `addr` is always our own.
const STRIPPED: &[&str] = &["bg", "fg", "retry", "addr", "vers", "nfsvers", "minorversion", "ro", "rw"];

/// Which versions the options allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionChoice {
    /// No version is given.
    Any,
    /// `vers=4` without a minor version.
    AnyV4,
    /// One version.
    Only(Version),
}

/// Whether programs run on this node that some mounts need; `None` if the driver cannot see that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Daemons {
    /// rpc.statd, for locks of NFSv3.
    pub statd: Option<bool>,
    /// rpc.gssd, for Kerberos.
    pub gssd: Option<bool>,
    /// tlshd, for TLS.
    pub tlshd: Option<bool>,
}

/// The options of a mount.
#[derive(Clone, PartialEq, Eq)]
pub struct ParsedOptions {
    /// The version.
    pub version: VersionChoice,
    /// `ro` is the last of `ro` and `rw`.
    pub read_only: bool,
    /// `port=`, where the NULL call goes; 2049 by default.
    pub port: u16,
    /// The transport has no TCP port that can be probed (RDMA, UDP).
    pub no_probe: bool,
    /// `proto=tcp6`, `udp6`: only IPv6 addresses; `false`: `proto=tcp`, `udp` do not exclude them, as with mount.nfs.
    pub only_v6: bool,
    /// Locks are not sent to the server.
    pub local_locks: bool,
    /// `sec=krb5*`.
    pub kerberos: bool,
    /// `xprtsec=tls` or `mtls`.
    pub tls: bool,
    /// Options for the kernel, in the user's order.
    rest: Vec<String>,
}

impl ParsedOptions {
    /// Parses `mount -o` options, each possibly a comma-separated list.
    pub fn parse(options: &[String]) -> Result<Self, MountFailure> {
        let mut parsed = Self {
            version: VersionChoice::Any,
            read_only: false,
            port: 2049,
            no_probe: false,
            only_v6: false,
            local_locks: false,
            kerberos: false,
            tls: false,
            rest: Vec::new(),
        };
        let mut minor = None;
        let words = options.iter().flat_map(|list| list.split(',')).map(str::trim);
        for word in words.filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong =
                || MountFailure::invalid(format!("mount option {key}: {value:?} is not a valid value"));
            match key {
                "vers" | "nfsvers" => parsed.version = version(value).ok_or_else(wrong)?,
                "v3" | "v4" | "v4.0" | "v4.1" | "v4.2" if value.is_empty() => {
                    parsed.version = version(&key[1..]).ok_or_else(wrong)?;
                    continue;
                }
                "minorversion" => minor = Some(value.parse::<u8>().map_err(|_| wrong())?),
                "ro" => parsed.read_only = true,
                "rw" => parsed.read_only = false,
                "port" => {
                    parsed.port = value.parse().map_err(|_| wrong())?;
                    if parsed.port == 0 {
                        // The kernel then asks rpcbind; servers nearly always use 2049.
                        parsed.port = 2049;
                    }
                }
                "proto" => {
                    parsed.no_probe = value.starts_with("rdma") || value.starts_with("udp");
                    parsed.only_v6 = value.ends_with('6');
                }
                "rdma" | "udp" => parsed.no_probe = true,
                "tcp" => parsed.no_probe = false,
                "nolock" => parsed.local_locks = true,
                "lock" => parsed.local_locks = false,
                "local_lock" => parsed.local_locks = value == "all",
                "sec" => parsed.kerberos = value.split(':').any(|flavor| flavor.starts_with("krb5")),
                "xprtsec" => parsed.tls = matches!(value, "tls" | "mtls"),
                _ => {}
            }
            if !STRIPPED.contains(&key) {
                parsed.rest.push(word.to_owned());
            }
        }
        if let (Some(minor), VersionChoice::AnyV4 | VersionChoice::Any) = (minor, parsed.version) {
            let of_minor = version(&format!("4.{minor}"));
            parsed.version = of_minor.ok_or_else(|| {
                MountFailure::invalid(format!("mount option minorversion: there is no NFSv4.{minor}"))
            })?;
        }
        Ok(parsed)
    }

    /// Kerberos and TLS need a helper on the node. Without it the kernel would wait for it, until the deadline.
    pub(super) fn check_security(&self, daemons: &Daemons) -> Result<(), MountFailure> {
        if self.kerberos && daemons.gssd == Some(false) {
            return Err(MountFailure::precondition(
                "mount option sec=krb5 needs rpc.gssd on this node, and it is not running: install and start it with a \
                 keytab (Debian: nfs-common, rpc-gssd.service), or use sec=sys",
            ));
        }
        if self.tls && daemons.tlshd == Some(false) {
            return Err(MountFailure::precondition(
                "mount option xprtsec needs tlshd on this node, and it is not running: install and start it (package \
                 ktls-utils), or remove xprtsec",
            ));
        }
        Ok(())
    }

    /// The option texts of one mount call.
    pub(super) fn for_kernel(&self, version: Version, facts: &ServerFacts) -> Vec<String> {
        let mut options = vec![format!("vers={}", version.as_str()), format!("addr={}", facts.address)];
        let given = |key: &str| self.rest.iter().any(|word| word.split('=').next() == Some(key));
        if let (Version::V40, Some(client), false) = (version, facts.client_address, given("clientaddr")) {
            options.push(format!("clientaddr={client}"));
        }
        options.extend(self.rest.iter().cloned());
        options
    }
}

fn version(text: &str) -> Option<VersionChoice> {
    Some(match text {
        "3" => VersionChoice::Only(Version::V3),
        "4" => VersionChoice::AnyV4,
        "4.0" => VersionChoice::Only(Version::V40),
        "4.1" => VersionChoice::Only(Version::V41),
        "4.2" => VersionChoice::Only(Version::V42),
        _ => return None,
    })
}

/// Options of the controller's own mount. Calls end with an error instead of blocking, and names are never cached: another
/// controller may have created or renamed them. What the user says about these properties is for pods.
pub fn controller_options(options: &[String]) -> Vec<String> {
    const REPLACED: &[&str] = &[
        "ro",
        "rw",
        "hard",
        "soft",
        "softerr",
        "softreval",
        "nosoftreval",
        "timeo",
        "retrans",
        "lookupcache",
        "ac",
        "noac",
        "actimeo",
        "acregmin",
        "acregmax",
        "acdirmin",
        "acdirmax",
        "fsc",
        "nofsc",
        "noexec",
        "exec",
        "suid",
        "nosuid",
        "dev",
        "nodev",
    ];
    let words = options.iter().flat_map(|list| list.split(',')).map(str::trim);
    let kept = words
        .filter(|word| !word.is_empty() && !REPLACED.contains(&word.split('=').next().unwrap_or_default()));
    let ours = [
        "softerr",
        "timeo=50",
        "retrans=2",
        "lookupcache=none",
        "acdirmin=0",
        "acdirmax=0",
        "nosuid",
        "nodev",
        "noexec",
    ];
    kept.chain(ours).map(str::to_owned).collect()
}
