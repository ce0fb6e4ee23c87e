use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn class(pairs: &[(&str, &str)]) -> Result<ClassParameters, ParameterError> {
    let mut all = map(&[("server", "srv")]);
    all.extend(map(pairs));
    ClassParameters::parse(&all)
}

#[test]
fn keys_have_any_case_and_metadata_is_kept() {
    let parsed = ClassParameters::parse(&map(&[
        ("SERVER", "srv"),
        ("Share", "/a/b/"),
        ("subdir", "${pvc.metadata.name}"),
        ("onDelete", "Retain"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "ns"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ("nfsVersion", "4.1"),
        ("nconnect", "8"),
        ("tls", "mtls"),
        ("security", "krb5p"),
    ]))
    .unwrap();
    assert_eq!((parsed.server.as_str(), parsed.share.as_str()), ("srv", "/a/b"));
    assert_eq!((parsed.on_delete, parsed.on_delete_text.as_str()), (Some(OnDelete::Retain), "Retain"));
    assert_eq!(parsed.metadata.pvc_namespace.as_deref(), Some("ns"));
    assert_eq!(parsed.transport.version.as_deref(), Some("4.1"));
    assert_eq!(class(&[]).unwrap().share, "/");
}

// B24
#[test]
fn modes_and_owners_of_new_directories() {
    for (pairs, mode) in [
        (&[][..], None),
        (&[("mountPermissions", "0777")], Some(0o777)),
        (&[("mountPermissions", "2770")], Some(0o2770)),
        (&[("mountPermissions", "0")], None),
        (&[("mountPermissions", "")], None),
        (&[("mode", "0770"), ("mountPermissions", "0777")], Some(0o770)),
        (&[("pathPattern", "x")], Some(0o777)),
        (&[("pathPattern", "x"), ("mode", "0700")], Some(0o700)),
    ] {
        assert_eq!(class(pairs).unwrap().mode, mode, "{pairs:?}");
    }
    let parsed = class(&[("uid", "1000"), ("gid", "0")]).unwrap();
    assert_eq!((parsed.uid, parsed.gid), (Some(1000), Some(0)));
}

#[test]
fn quota_is_required_or_if_available() {
    for (pairs, mode) in [
        (&[][..], QuotaMode::IfAvailable),
        (&[("quota", "ifAvailable")], QuotaMode::IfAvailable),
        (&[("Quota", "Required")], QuotaMode::Required),
    ] {
        assert_eq!(class(pairs).unwrap().quota, mode, "{pairs:?}");
    }
    for value in ["", "off", "true", "1Gi"] {
        assert!(class(&[("quota", value)]).is_err(), "{value:?}");
    }
}

#[test]
fn parameters_of_nfs_subdir_are_aliases() {
    for (pairs, policy) in [
        (&[("archiveOnDelete", "false")][..], Some(OnDelete::Delete)),
        (&[("archiveOnDelete", "true")], Some(OnDelete::Archive)),
        (&[("archiveOnDelete", "true"), ("onDelete", "retain")], Some(OnDelete::Retain)),
        (&[], None),
    ] {
        assert_eq!(class(pairs).unwrap().on_delete, policy, "{pairs:?}");
    }
    assert_eq!(class(&[("pathPattern", "${.PVC.name}")]).unwrap().sub_dir, "${.PVC.name}");
}

#[test]
fn wrong_parameters_are_refused() {
    for pairs in [
        &[("shares", "/x")][..],
        &[("mountOptions", "hard")],
        &[("csi.storage.k8s.io/other", "x")],
        &[("share", "/a/../b")],
        &[("share", "..")],
        &[("share", "/a\\..")],
        &[("share", "/a#b")],   // B4
        &[("server", "srv#x")], // B4
        &[("server", "a b")],
        &[("Server", "other")],
        &[("subDir", "a"), ("pathPattern", "b")],
        &[("onDelete", "keep")],
        &[("archiveOnDelete", "maybe")],
        &[("mountPermissions", "0778")],
        &[("mountPermissions", "10000")],
        &[("mode", "+7")],
        &[("mode", "")],
        &[("uid", "-1")],
        &[("uid", "4294967295")],
        &[("nfsVersion", "5")],
        &[("nconnect", "17")],
        &[("nconnect", "0")],
        &[("tls", "yes")],
        &[("security", "none,ro")],
    ] {
        assert!(class(pairs).is_err(), "{pairs:?}");
    }
    assert_eq!(ClassParameters::parse(&map(&[("share", "/x")])), Err(ParameterError::Missing("server")));
    let unknown = class(&[("Shares", "/x")]).unwrap_err().to_string();
    assert_eq!(unknown, "invalid parameter \"Shares\" in storage class");
}

#[test]
fn context_has_all_parameters_and_the_directory() {
    let context = volume_context(&map(&[("server", "srv"), ("subDir", "${pvc.metadata.name}")]), "data");
    assert_eq!(context, map(&[("server", "srv"), ("subDir", "data")]));
    let context = volume_context(&map(&[("server", "srv"), ("pathPattern", "${.PVC.name}")]), "data");
    assert_eq!(context, map(&[("server", "srv"), ("subdir", "data")]));
}

#[test]
fn volume_context_ignores_foreign_keys_and_requires_server_and_share() {
    let parsed = VolumeAttributes::parse(&map(&[
        ("server", "srv"),
        ("share", "/"),
        ("mountOptions", "hard,nolock"),
        ("mountPermissions", "0755"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "1"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("nconnect", "2"),
    ]))
    .unwrap();
    assert_eq!((parsed.share.as_str(), parsed.mount_options.as_str()), ("/", "hard,nolock"));
    assert_eq!((parsed.mount_permissions, parsed.transport.nconnect), (Some(0o755), Some(2)));
    for pairs in [&[("server", "srv")][..], &[("share", "/")], &[("server", ""), ("share", "/")]] {
        assert!(VolumeAttributes::parse(&map(pairs)).is_err(), "{pairs:?}");
    }
}

#[test]
fn snapshot_classes_and_secrets() {
    let parsed = SnapshotParameters::parse(&map(&[
        ("Server", "srv"),
        ("share", "/snaps"),
        ("mountOptions", "hard"),
        ("format", "tar.zst"),
        ("csi.storage.k8s.io/volumesnapshot/name", "s"),
    ]))
    .unwrap();
    assert_eq!(parsed.share.as_deref(), Some("/snaps"));
    assert!(SnapshotParameters::parse(&map(&[("format", "zip")])).is_err());
    assert!(SnapshotParameters::parse(&map(&[("onDelete", "retain")])).is_err());
    assert_eq!(secret_mount_options(&map(&[("MOUNTOPTIONS", "sec=krb5")])), Some("sec=krb5"));
    assert_eq!(secret_mount_options(&map(&[("x", "y")])), None);
}
