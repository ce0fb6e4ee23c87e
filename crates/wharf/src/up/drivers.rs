//! Drivers that somebody else runs: where they are, and what is said of them that they do not say themselves.

use std::str::FromStr;

use wharf_csi::Endpoint;

/// A driver of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Foreign {
    pub(super) endpoint: Endpoint,
    pub(super) described: Described,
}

/// What a CSIDriver object says that no driver says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Described {
    /// It is told of the pod when it publishes.
    pub(super) pod_info: bool,
    /// Pods may have volumes of it without a claim.
    pub(super) ephemeral: bool,
    /// Whether files get the pod's group.
    pub(super) fs_group_policy: Option<String>,
}

impl FromStr for Foreign {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let endpoint = words.next().unwrap_or_default().parse().map_err(|error| format!("{error}"))?;
        let mut described = Described::default();
        for word in words {
            match (word, word.split_once('=')) {
                ("pod-info", _) => described.pod_info = true,
                ("ephemeral", _) => described.ephemeral = true,
                (_, Some(("fs-group", policy @ ("None" | "File" | "ReadWriteOnceWithFSType")))) => {
                    described.fs_group_policy = Some(policy.to_owned());
                }
                _ => {
                    return Err(format!(
                        "{word:?} says nothing of a driver: pod-info, ephemeral or fs-group=None|File|ReadWriteOnceWithFSType"
                    ));
                }
            }
        }
        Ok(Self { endpoint, described })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_and_words() {
        let read = |text: &str| text.parse::<Foreign>();
        assert_eq!(read("unix:///run/csi.sock").unwrap().described, Described::default());
        let all = Described { pod_info: true, ephemeral: true, fs_group_policy: Some("File".to_owned()) };
        assert_eq!(read("/run/csi.sock,pod-info,ephemeral,fs-group=File").unwrap().described, all);
        for wrong in ["", "tcp://a", "/run/a,what", "/run/a,fs-group=Odd", "/run/a,fs-group"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
