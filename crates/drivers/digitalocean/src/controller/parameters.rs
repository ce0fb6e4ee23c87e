//! StorageClass parameters. The existing driver reads none, so existing classes can contain anything: unknown
//! parameters are ignored and logged.

use std::collections::BTreeMap;

use wharf_driver::backend::{Capability, CreateError, VolumeAccess};
use wharf_linux::{FsType, check_mkfs_options};

use crate::names::MKFS_OPTIONS;

/// Prefix of Kubernetes' own parameters.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// The volume context for these parameters.
pub(super) fn context_of(
    parameters: &BTreeMap<String, String>,
    capabilities: &[Capability],
) -> Result<BTreeMap<String, String>, CreateError> {
    let ours = |key: &str| key == MKFS_OPTIONS || key.starts_with(KUBERNETES);
    for key in parameters.keys().filter(|key| !ours(key)) {
        tracing::warn!(parameter = key, "ignored unknown StorageClass parameter");
    }
    let Some(options) = parameters.get(MKFS_OPTIONS).filter(|options| !options.trim().is_empty()) else {
        return Ok(BTreeMap::new());
    };
    let words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    for capability in capabilities {
        if let VolumeAccess::Mount(mount) = &capability.access {
            let fs = mount.fs_type.parse().unwrap_or(FsType::Ext4);
            check_mkfs_options(fs, &words)
                .map_err(|problem| CreateError::Invalid(format!("parameter {MKFS_OPTIONS}: {problem}")))?;
        }
    }
    Ok([(MKFS_OPTIONS.to_owned(), words.join(" "))].into())
}

#[cfg(test)]
mod tests {
    use wharf_driver::backend::AccessMode;

    use super::*;

    #[test]
    fn only_valid_mkfs_options_enter_the_context() {
        let context = |pairs: &[(&str, &str)]| {
            let parameters =
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            context_of(&parameters, &[Capability::mount("ext4", AccessMode::SingleNodeWriter)])
        };
        assert_eq!(context(&[]).unwrap(), BTreeMap::new());
        assert_eq!(
            context(&[("anything", "x"), ("csi.storage.k8s.io/fstype", "xfs")]).unwrap(),
            BTreeMap::new()
        );
        let created = context(&[(MKFS_OPTIONS, " -m  0 ")]).unwrap();
        assert_eq!(created.get(MKFS_OPTIONS).map(String::as_str), Some("-m 0"));
        assert!(matches!(context(&[(MKFS_OPTIONS, "-F /dev/sda")]), Err(CreateError::Invalid(_))));
    }
}
