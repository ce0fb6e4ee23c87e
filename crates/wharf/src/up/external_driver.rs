//! The `--csi` flag: the socket of another driver, and properties that the driver cannot report itself.

use std::collections::BTreeMap;
use std::str::FromStr;

use wharf_csi::Endpoint;

/// A driver that Wharf serves but does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExternalDriver {
    pub(super) endpoint: Endpoint,
    pub(super) options: DriverOptions,
}

/// Fields of the CSIDriver object that are not part of the CSI handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DriverOptions {
    /// `podInfoOnMount`: NodePublishVolume gets the pod's metadata.
    pub(super) pod_info: bool,
    /// Allow inline ephemeral volumes.
    pub(super) ephemeral: bool,
    /// `fsGroupPolicy`.
    pub(super) fs_group_policy: Option<String>,
    /// Name and parameters of the driver's classes; by default the driver's name, and none.
    pub(super) class: Option<ClassOptions>,
}

/// The classes of a driver that needs parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClassOptions {
    pub(super) name: String,
    pub(super) parameters: BTreeMap<String, String>,
}

impl FromStr for ExternalDriver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let endpoint = parts.next().unwrap_or_default().parse().map_err(|error| format!("{error}"))?;
        let mut options = DriverOptions::default();
        for option in parts {
            match (option, option.split_once('=')) {
                ("pod-info", _) => options.pod_info = true,
                ("ephemeral", _) => options.ephemeral = true,
                (_, Some(("fs-group", policy @ ("None" | "File" | "ReadWriteOnceWithFSType")))) => {
                    options.fs_group_policy = Some(policy.to_owned());
                }
                _ => {
                    return Err(format!(
                        "unknown driver option {option:?}: use pod-info, ephemeral or fs-group=None|File|ReadWriteOnceWithFSType"
                    ));
                }
            }
        }
        Ok(Self { endpoint, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_and_options_are_parsed() {
        let read = |text: &str| text.parse::<ExternalDriver>();
        assert_eq!(read("unix:///run/csi.sock").unwrap().options, DriverOptions::default());
        let all = DriverOptions {
            pod_info: true,
            ephemeral: true,
            fs_group_policy: Some("File".to_owned()),
            class: None,
        };
        assert_eq!(read("/run/csi.sock,pod-info,ephemeral,fs-group=File").unwrap().options, all);
        for invalid in ["", "tcp://a", "/run/a,what", "/run/a,fs-group=Odd", "/run/a,fs-group"] {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }
}
