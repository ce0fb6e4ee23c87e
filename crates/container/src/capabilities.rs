//! Linux capabilities of a container.

/// An unknown capability name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown capability {0:?}")]
pub(crate) struct UnknownCapability(pub(crate) String);

/// All capabilities without the prefix `CAP_`, in the kernel's order.
const NAMES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
    SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// containerd's default set without `NET_RAW`: containers share the host's network namespace, where raw sockets would
/// receive and forge the traffic of the host and of every pod.
const DEFAULT: &str = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE \
    SYS_CHROOT KILL AUDIT_WRITE";

/// All 41 capabilities.
const ALL: u64 = (1 << 41) - 1;

/// The capabilities of a container as a bit set, as containerd computes it: `ALL` is applied before single names (`drop: ALL, add:
/// CHOWN` leaves one, `add: ALL, drop: CHOWN` all but one), and a name in both lists is dropped.
pub(crate) fn resolve(privileged: bool, add: &[String], drop: &[String]) -> Result<u64, UnknownCapability> {
    if privileged {
        return Ok(ALL);
    }
    let (add_all, add) = bits(add)?;
    let (drop_all, drop) = bits(drop)?;
    let mut set = if add_all { ALL } else { DEFAULT.split(' ').filter_map(bit).sum() };
    if drop_all {
        set = 0;
    }
    Ok((set | add) & !drop)
}

/// Whether `ALL` is in the list, and the other names as bits.
fn bits(names: &[String]) -> Result<(bool, u64), UnknownCapability> {
    names.iter().try_fold((false, 0), |(all, set), text| {
        let upper = text.to_ascii_uppercase();
        match upper.strip_prefix("CAP_").unwrap_or(&upper) {
            "ALL" => Ok((true, set)),
            name => bit(name).map(|bit| (all, set | bit)).ok_or_else(|| UnknownCapability(text.clone())),
        }
    })
}

/// The bit of a capability.
fn bit(name: &str) -> Option<u64> {
    NAMES.split(' ').position(|known| known == name).map(|number| 1 << number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> u64 {
        names.iter().map(|name| bit(name).unwrap()).sum()
    }

    #[test]
    fn add_and_drop_lists_modify_the_default_set() {
        let default = 0xa804_05fb;
        type Names = &'static [&'static str];
        let cases: [(&str, bool, Names, Names, u64); 11] = [
            ("containerd's default set without NET_RAW", false, &[], &[], default),
            ("raw sockets on request", false, &["NET_RAW"], &[], 0xa804_25fb),
            ("privileged has all", true, &[], &["ALL"], ALL),
            ("one more", false, &["NET_ADMIN"], &[], default | set(&["NET_ADMIN"])),
            ("with prefix", false, &["CAP_NET_ADMIN"], &[], default | set(&["NET_ADMIN"])),
            ("any case", false, &["net_admin"], &[], default | set(&["NET_ADMIN"])),
            ("one less", false, &[], &["KILL"], default & !set(&["KILL"])),
            ("none", false, &[], &["ALL"], 0),
            ("none but one", false, &["CHOWN"], &["ALL"], set(&["CHOWN"])),
            ("all but one", false, &["ALL"], &["CHOWN"], ALL & !set(&["CHOWN"])),
            ("in both lists: dropped", false, &["CHOWN"], &["CHOWN"], default & !set(&["CHOWN"])),
        ];
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (case, privileged, add, drop, expected) in cases {
            assert_eq!(resolve(privileged, &strings(add), &strings(drop)), Ok(expected), "{case}");
        }
        assert_eq!(NAMES.split(' ').count(), 41);
        assert_eq!(resolve(false, &["FLY".to_owned()], &[]), Err(UnknownCapability("FLY".to_owned())));
    }
}
