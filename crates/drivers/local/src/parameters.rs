//! StorageClass parameters. Unknown ones are refused: a misspelt parameter must not become a silent default.

use std::collections::BTreeMap;

use crate::Provisioning;

/// The parameters of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Parameters {
    pub provisioning: Provisioning,
    pub mkfs_options: Vec<String>,
}

/// Key of the mkfs options, both as a parameter and in the volume context.
pub(crate) const MKFS_OPTIONS: &str = "mkfsOptions";

/// Parameters that belong to the provisioner itself, which it may pass on.
const IGNORED_PREFIX: &str = "csi.storage.k8s.io/";

/// An invalid parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("unknown parameter {0:?}: use type or mkfsOptions")]
    Unknown(String),
    #[error("unknown parameter {0:?}: snapshots take none")]
    UnknownOfSnapshot(String),
    #[error("type {0:?}: use thin or thick")]
    Type(String),
}

/// Parses a volume's parameters.
pub(crate) fn of_volume(parameters: &BTreeMap<String, String>) -> Result<Parameters, ParameterError> {
    let mut read = Parameters::default();
    for (key, value) in parameters {
        match key.as_str() {
            "type" => {
                read.provisioning = match value.as_str() {
                    "thin" => Provisioning::Thin,
                    "thick" => Provisioning::Thick,
                    _ => return Err(ParameterError::Type(value.clone())),
                }
            }
            MKFS_OPTIONS => read.mkfs_options = value.split_whitespace().map(str::to_owned).collect(),
            key if key.starts_with(IGNORED_PREFIX) => {}
            _ => return Err(ParameterError::Unknown(key.clone())),
        }
    }
    Ok(read)
}

/// Checks the parameters of a snapshot or group, which take none.
pub(crate) fn of_snapshot(parameters: &BTreeMap<String, String>) -> Result<(), ParameterError> {
    match parameters.keys().find(|key| !key.starts_with(IGNORED_PREFIX)) {
        Some(key) => Err(ParameterError::UnknownOfSnapshot(key.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn volume_parameters_are_parsed() {
        let read = |pairs| of_volume(&parameters(pairs));
        assert_eq!(read(&[]), Ok(Parameters::default()));
        assert_eq!(read(&[("csi.storage.k8s.io/pvc/name", "x")]), Ok(Parameters::default()));
        assert_eq!(read(&[("type", "thick")]).map(|p| p.provisioning), Ok(Provisioning::Thick));
        assert_eq!(
            read(&[("mkfsOptions", " -m  0 ")]).map(|p| p.mkfs_options),
            Ok(vec!["-m".to_owned(), "0".to_owned()])
        );
        assert_eq!(read(&[("type", "Thin")]), Err(ParameterError::Type("Thin".into())));
        assert_eq!(read(&[("Type", "thin")]), Err(ParameterError::Unknown("Type".into())));
        assert_eq!(read(&[("", "")]), Err(ParameterError::Unknown("".into())));
    }

    #[test]
    fn snapshot_parameters_are_refused() {
        assert_eq!(of_snapshot(&parameters(&[("csi.storage.k8s.io/x", "y")])), Ok(()));
        assert_eq!(
            of_snapshot(&parameters(&[("type", "thin")])),
            Err(ParameterError::UnknownOfSnapshot("type".into()))
        );
    }
}
