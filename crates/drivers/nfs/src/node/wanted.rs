//! What a NodePublishVolume request wants: pure rules over the request and the driver's settings.

use std::collections::BTreeSet;

use wharf_driver::backend::{BackendError, NodeVolume, TargetError, VolumeAccess};

use crate::mount;
use crate::options::combine;
use crate::parameters::VolumeAttributes;
use crate::path::{RECORDS, SharePath};
use crate::template;

/// Settings that decide about requests.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedRules {
    /// The mode of volumes whose context has none.
    pub(super) mount_permissions: Option<u32>,
    /// Servers that inline volumes can mount from.
    pub(super) inline: InlineVolumes,
}

/// Whether the author of a pod can mount from a server: with an inline volume, anyone who can create pods selects server,
/// share and options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InlineVolumes(BTreeSet<String>);

impl InlineVolumes {
    /// Allows these servers, each `SERVER` or `SERVER:/SHARE`; none of them refuses all inline volumes. `SERVER:/SHARE` does
    /// not allow `subDir`: the client follows symlinks in it, and whoever can write to the share can make one that leaves it.
    pub fn allow<'a>(servers: impl IntoIterator<Item = &'a str>) -> Self {
        Self(servers.into_iter().map(|entry| entry.trim_end_matches('/').to_owned()).collect())
    }

    fn allows(&self, server: &str, share: &str, sub_dir: &str) -> bool {
        let share = share.trim_matches('/');
        let of_share = || self.0.contains(format!("{server}:/{share}").trim_end_matches('/'));
        // An entry for the root of a server ends with a colon, which a server's name can, too.
        let of_server = !server.ends_with(':') && self.0.contains(server);
        of_server || (sub_dir.trim_matches('/').is_empty() && of_share())
    }
}

/// A mount to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) server: String,
    /// The directory on the server, from its root.
    pub(super) path: String,
    /// The source column of the mount table.
    pub(super) source: String,
    pub(super) options: Vec<String>,
    pub(super) read_only: bool,
    pub(super) permissions: Option<u32>,
}

impl Wanted {
    /// Checks a request. Everything about the volume is in its context.
    pub(super) fn of(volume: &NodeVolume, rules: &WantedRules) -> Result<Self, TargetError> {
        let VolumeAccess::Mount(access) = &volume.capability.access else {
            return Err(invalid("volume_capability: an NFS volume cannot be used as a raw block device"));
        };
        let attributes = VolumeAttributes::parse(&volume.volume_context)
            .map_err(|error| invalid(format!("volume context: {error}")))?;
        let texts = access.flags.iter().map(String::as_str).chain([attributes.mount_options.as_str()]);
        let mut options = combine(texts, &attributes.transport).map_err(invalid)?;
        let inline = is_inline(volume);
        if inline {
            let VolumeAttributes { server, share, sub_dir, .. } = &attributes;
            if !rules.inline.allows(server, share, sub_dir) {
                return Err(forbidden(format!(
                    "inline volumes from {server}:{share} are not allowed: use a PersistentVolumeClaim, or start the driver \
                     with --enable-inline-volumes={server}:{share} (without subDir) or --enable-inline-volumes={server}"
                )));
            }
            // The driver is root on the server; the author of a pod need not be.
            if attributes.mount_permissions.is_some() {
                return Err(forbidden(
                    "mountPermissions of an inline volume are not allowed: set the mode on the server"
                        .to_owned(),
                ));
            }
            options.extend(["nosuid".to_owned(), "nodev".to_owned()]);
        }
        let path = path_of(&attributes)?;
        let target = volume.target.as_ref();
        let read_only = volume.capability.mode.is_reader_only()
            || target.is_some_and(|target| target.read_only)
            || options.iter().any(|option| option == "ro");
        Ok(Self {
            source: mount::source(&attributes.server, &path),
            server: attributes.server,
            path,
            options,
            read_only,
            permissions: attributes.mount_permissions.or(rules.mount_permissions).filter(|_| !inline),
        })
    }
}

/// The volume's directory on the server.
fn path_of(attributes: &VolumeAttributes) -> Result<String, TargetError> {
    let share = attributes.share.trim_matches('/');
    if share.split('/').any(|part| part.eq_ignore_ascii_case(RECORDS)) {
        return Err(invalid(format!("share {share:?} is in {RECORDS}, which holds the driver's records")));
    }
    if attributes.sub_dir.trim_matches('/').is_empty() {
        return Ok(format!("/{share}"));
    }
    let sub_dir = template::resolve_existing(&attributes.sub_dir, &attributes.metadata).map_err(invalid)?;
    let sub_dir = SharePath::new(&sub_dir).map_err(invalid)?;
    match share {
        "" => Ok(format!("/{sub_dir}")),
        share => Ok(format!("/{share}/{sub_dir}")),
    }
}

/// Kubelet sets a key if the CSIDriver object asks for information about the pod, and always builds the ID of an inline volume
/// in the same way.
fn is_inline(volume: &NodeVolume) -> bool {
    let hash = volume.id.strip_prefix("csi-");
    let generated = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    volume.volume_context.get("csi.storage.k8s.io/ephemeral").is_some_and(|value| value == "true")
        || hash.is_some_and(generated)
}

fn forbidden(reason: String) -> TargetError {
    TargetError::Backend(BackendError::Forbidden(reason))
}

fn invalid(reason: impl ToString) -> TargetError {
    TargetError::Invalid(reason.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wharf_driver::backend::{AccessMode, Capability, MountAccess, PublishTarget};

    use super::*;

    fn volume(id: &str, context: &[(&str, &str)], flags: &[&str], read_only: bool) -> NodeVolume {
        let mut capability = Capability::mount("", AccessMode::MultiNodeMultiWriter);
        capability.access = VolumeAccess::Mount(MountAccess::new("").flags(flags.iter().copied()));
        let context: BTreeMap<String, String> =
            context.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeVolume::new(id, capability)
            .volume_context(context)
            .target(PublishTarget::new("/pods/a").read_only(read_only))
    }

    fn wanted(context: &[(&str, &str)]) -> Result<Wanted, TargetError> {
        Wanted::of(&volume("v", context, &[], false), &WantedRules::default())
    }

    #[test]
    fn source_is_built_from_the_context_as_csi_driver_nfs_does() {
        for (context, source) in [
            (&[("server", "nas"), ("share", "/export"), ("subDir", "pvc-1")][..], "nas:/export/pvc-1"),
            (&[("Server", "nas"), ("SHARE", "/export/"), ("subdir", "a/b")], "nas:/export/a/b"),
            (&[("server", "nas"), ("share", "/")], "nas:/"),
            (&[("server", "nas"), ("share", "/"), ("subDir", "x")], "nas:/x"),
            (&[("server", "2001:db8::1"), ("share", "/x")], "[2001:db8::1]:/x"),
            // A literal directory of csi-driver-nfs, and one that it replaces again.
            (
                &[("server", "nas"), ("share", "/x"), ("subDir", "${pv.metadata.name}")],
                "nas:/x/${pv.metadata.name}",
            ),
            (
                &[
                    ("server", "nas"),
                    ("share", "/x"),
                    ("subDir", "${pv.metadata.name}"),
                    ("csi.storage.k8s.io/pv/name", "pv1"),
                ],
                "nas:/x/pv1",
            ),
        ] {
            assert_eq!(wanted(context).unwrap().source, source, "{context:?}");
        }
    }

    #[test]
    fn paths_that_leave_the_share_or_enter_the_records_are_refused() {
        for context in [
            &[("share", "/x")][..],
            &[("server", "nas")],
            &[("server", "nas"), ("share", "/x"), ("subDir", "../y")],
            &[("server", "nas"), ("share", "/x"), ("subDir", "a/../../y")],
            &[("server", "nas"), ("share", "/x"), ("subDir", "..\\y")],
            &[("server", "nas"), ("share", "/x/../y")],
            &[("server", "nas"), ("share", "/x"), ("subDir", ".wharf/volumes")],
            &[("server", "nas"), ("share", "/x/.wharf")],
            &[("server", "nas"), ("share", "/x/.wharf/trash"), ("subDir", "a")],
            &[
                ("server", "nas"),
                ("share", "/x"),
                ("subDir", "${pv.metadata.name}"),
                ("csi.storage.k8s.io/pv/name", "../y"),
            ],
            &[("server", "nas"), ("share", "/x"), ("mountOptions", "addr=10.0.0.1")],
            &[("server", "nas"), ("share", "/x"), ("mountPermissions", "x")],
        ] {
            let result = wanted(context);
            assert!(matches!(result, Err(TargetError::Invalid(_))), "{context:?}: {result:?}");
        }
        let mut block = volume("v", &[("server", "nas"), ("share", "/x")], &[], false);
        block.capability.access = VolumeAccess::Block;
        assert!(matches!(Wanted::of(&block, &WantedRules::default()), Err(TargetError::Invalid(_))));
    }

    #[test]
    fn options_modes_and_permissions_are_combined() {
        let context = [
            ("server", "nas"),
            ("share", "/x"),
            ("mountOptions", "nconnect=4,noatime"),
            ("mountPermissions", "0770"),
        ];
        let rules = WantedRules { mount_permissions: Some(0o777), ..WantedRules::default() };
        let found = Wanted::of(&volume("v", &context, &["nfsvers=4.1", "hard"], false), &rules).unwrap();
        assert_eq!(found.options.join(","), "vers=4.1,hard,nconnect=4,noatime");
        assert_eq!((found.permissions, found.read_only), (Some(0o770), false));
        let plain = &context[..2];
        let found = Wanted::of(&volume("v", plain, &["ro"], false), &rules).unwrap();
        assert_eq!((found.permissions, found.read_only), (Some(0o777), true));
        assert!(Wanted::of(&volume("v", plain, &[], true), &rules).unwrap().read_only);
    }

    /// B32: whoever can create pods could otherwise mount from any server.
    #[test]
    fn inline_volumes_need_an_allowed_server() {
        let inline_id = format!("csi-{}", "0a".repeat(32));
        let ephemeral = ("csi.storage.k8s.io/ephemeral", "true");
        let context = [("server", "nas"), ("share", "/x/"), ephemeral];
        for (allowed, ok) in [
            (&[][..], false),
            (&["other"], false),
            (&["nas:/y"], false),
            (&["nas"], true),
            (&["nas:/x"], true),
            (&["nas:/x/"], true),
        ] {
            let inline = InlineVolumes::allow(allowed.iter().copied());
            let rules = WantedRules { inline, ..WantedRules::default() };
            for inline in [volume("v", &context, &[], false), volume(&inline_id, &context[..2], &[], false)] {
                let result = Wanted::of(&inline, &rules);
                match &result {
                    Ok(wanted) => assert!(wanted.options.contains(&"nosuid".to_owned())),
                    Err(TargetError::Backend(BackendError::Forbidden(message))) => {
                        assert!(message.contains("--enable-inline-volumes"), "{message}");
                    }
                    Err(other) => panic!("{other}"),
                }
                assert_eq!(result.is_ok(), ok, "{allowed:?}");
            }
            assert!(Wanted::of(&volume("v", &context[..2], &[], false), &rules).is_ok());
        }
    }

    /// With the export of one share allowed, nothing else of the server can be reached; and the author of a pod cannot make
    /// the driver change modes.
    #[test]
    fn inline_volume_cannot_leave_the_allowed_share_or_change_its_mode() {
        let inline = InlineVolumes::allow(["nas:/x", "root:/", "all"]);
        let rules = WantedRules { inline, mount_permissions: Some(0o777) };
        let id = format!("csi-{}", "0a".repeat(32));
        for (attributes, ok) in [
            (&[("server", "nas"), ("share", "/x")][..], true),
            (&[("server", "nas"), ("share", "/x"), ("subDir", "/")], true),
            (&[("server", "nas"), ("share", "/x"), ("subDir", "link")], false),
            (&[("server", "nas"), ("share", "/x/y")], false),
            (&[("server", "NAS"), ("share", "/x")], false),
            (&[("server", "nas."), ("share", "/x")], false),
            (&[("server", "nas:"), ("share", "/x")], false),
            (&[("server", "root"), ("share", "/")], true),
            (&[("server", "root"), ("share", "/x")], false),
            (&[("server", "root:"), ("share", "/x")], false),
            (&[("server", "all"), ("share", "/x"), ("subDir", "a")], true),
            (&[("server", "all"), ("share", "/x"), ("mountPermissions", "0777")], false),
            (&[("server", "all"), ("share", "/x"), ("mountOptions", "suid,dev")], true),
        ] {
            match Wanted::of(&volume(&id, attributes, &[], false), &rules) {
                Ok(wanted) => {
                    assert!(ok, "{attributes:?}");
                    assert_eq!(wanted.permissions, None);
                    assert_eq!(wanted.options[wanted.options.len() - 2..], ["nosuid", "nodev"]);
                }
                Err(error) => {
                    assert!(
                        !ok && matches!(error, TargetError::Backend(BackendError::Forbidden(_))),
                        "{error}"
                    );
                }
            }
        }
    }
}
