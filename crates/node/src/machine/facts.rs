//! Facts about this machine, read once at start. Missing ones are left empty.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::thread::available_parallelism;

use super::Settings;

/// Machine facts in a Node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The node's address.
    pub(super) address: IpAddr,
    /// Number of CPUs.
    pub(super) cpus: usize,
    /// Memory in KiB.
    pub(super) memory: u64,
    /// Size of the root directory's file system in KiB.
    pub(super) storage: u64,
    /// In Go's naming: `amd64`.
    pub(super) architecture: &'static str,
    /// Kernel release.
    pub(super) kernel: String,
    /// Distribution name.
    pub(super) os_image: String,
    /// Id of this installation.
    pub(super) machine_id: String,
    /// UUID of the hardware.
    pub(super) system_uuid: String,
    /// Id of this boot.
    pub(super) boot_id: String,
}

impl Facts {
    /// Reads them from the system.
    pub(super) fn read(settings: &Settings) -> Self {
        let machine_id = first_line("/etc/machine-id");
        let system_uuid = first_line("/sys/class/dmi/id/product_uuid");
        Self {
            address: settings.address.unwrap_or_else(own_address),
            cpus: available_parallelism().map_or(1, usize::from),
            memory: memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            storage: storage(&settings.root),
            architecture: architecture(std::env::consts::ARCH),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            os_image: os_image(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
            // Virtual machines without firmware tables have none.
            system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
            machine_id,
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
        }
    }
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The source address of packets to other hosts. No packet is sent.
pub fn own_address() -> IpAddr {
    let local = Ipv4Addr::LOCALHOST;
    let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        // An address reserved for documentation is on no local network, so the default route applies.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    routed.map_or(local.into(), |address| address.ip())
}

fn storage(root: &Path) -> u64 {
    // The directory may not exist yet.
    let found = root.ancestors().find_map(|path| rustix::fs::statvfs(path).ok());
    found.map_or(0, |usage| usage.f_blocks.saturating_mul(usage.f_frsize) / 1024)
}

fn memory(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

fn os_image(os_release: &str) -> String {
    let pretty = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    pretty.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
}

fn architecture(ours: &'static str) -> &'static str {
    match ours {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_parsed() {
        assert_eq!(memory("MemTotal:       16384256 kB\nMemFree: 1 kB\n"), 16_384_256);
        assert_eq!(memory("MemFree: 1 kB\n"), 0);
        assert_eq!(memory("MemTotal: many kB\n"), 0);
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n"),
            "Debian GNU/Linux 13 (trixie)"
        );
        assert_eq!(os_image("PRETTY_NAME=plain\n"), "plain");
        assert_eq!(os_image(""), "");
        assert_eq!((architecture("x86_64"), architecture("riscv64")), ("amd64", "riscv64"));
    }

    #[test]
    fn facts_of_this_machine_are_found() {
        let settings = Settings::new("n", "/nowhere/at/all");
        let facts = Facts::read(&settings);
        assert!(
            facts.cpus > 0 && facts.memory > 0 && facts.storage > 0 && !facts.kernel.is_empty(),
            "{facts:?}"
        );
        assert!(!facts.boot_id.is_empty());
    }
}
