use super::*;
use crate::Provisioning;
use crate::record::{Phase, Timestamp, VERSION};

fn mount(fs_type: &str) -> Capability {
    Capability::mount(fs_type, AccessMode::SingleNodeWriter)
}

fn block() -> Capability {
    Capability::block(AccessMode::SingleNodeWriter)
}

fn formatted(fs: FsType) -> FormatState {
    FormatState::Formatted { fs, uuid: "old".into() }
}

#[test]
fn only_single_node_modes_and_known_file_systems_are_supported() {
    use AccessMode::*;
    for (mode, supported) in [
        (SingleNodeWriter, true),
        (SingleNodeReaderOnly, true),
        (SingleNodeSingleWriter, true),
        (SingleNodeMultiWriter, true),
        (MultiNodeReaderOnly, false),
        (MultiNodeSingleWriter, false),
        (MultiNodeMultiWriter, false),
    ] {
        assert_eq!(refuses(&Capability::block(mode)).is_none(), supported, "{mode:?}");
    }
    assert!(refuses(&mount("ntfs")).is_some_and(|reason| reason.contains("ntfs")));
    for fs in ["", "ext4", "xfs", "btrfs"] {
        assert_eq!(refuses(&mount(fs)), None);
    }
}

#[test]
fn access_defaults_to_inherited_file_system_or_ext4() {
    let ext4 = Access::Mount { fs: FsType::Ext4 };
    let xfs = Access::Mount { fs: FsType::Xfs };
    assert_eq!(resolve_access(&[mount("")], None), Ok(vec![ext4]));
    assert_eq!(resolve_access(&[mount("")], Some(FsType::Xfs)), Ok(vec![xfs]));
    assert_eq!(resolve_access(&[mount(""), mount("ext4"), block()], None), Ok(vec![ext4, Access::Block]));
    assert_eq!(resolve_access(&[mount("xfs")], Some(FsType::Ext4)), Ok(vec![xfs]));
    assert!(resolve_access(&[mount("xfs"), mount("ext4")], None).is_err());
    assert_eq!(minimum_size(&[xfs]), FsType::Xfs.minimum_size());
    assert_eq!(minimum_size(&[Access::Block]), 0);
}

#[test]
fn copied_format_depends_on_source_and_access() {
    let mount = |fs| vec![Access::Mount { fs }];
    let new = |fs| Ok(FormatState::Copied { fs, uuid: "new".into() });
    let cases = [
        (FormatState::Blank, mount(FsType::Ext4), Ok(FormatState::Blank)),
        (FormatState::Blank, vec![Access::Block], Ok(FormatState::Blank)),
        (FormatState::Raw, vec![Access::Block], Ok(FormatState::Raw)),
        (FormatState::Raw, mount(FsType::Ext4), Ok(FormatState::Raw)),
        (formatted(FsType::Xfs), mount(FsType::Xfs), new(FsType::Xfs)),
        (FormatState::Copied { fs: FsType::Xfs, uuid: "old".into() }, mount(FsType::Xfs), new(FsType::Xfs)),
        (formatted(FsType::Xfs), vec![Access::Block], Ok(FormatState::Raw)),
        (formatted(FsType::Xfs), vec![Access::Block, Access::Mount { fs: FsType::Xfs }], new(FsType::Xfs)),
    ];
    for (source, access, expected) in cases {
        assert_eq!(copied_format(&source, &access, "new".into()), expected, "{source:?} {access:?}");
    }
    assert!(copied_format(&formatted(FsType::Xfs), &mount(FsType::Ext4), "new".into()).is_err());
    let formatting = FormatState::Formatting { fs: FsType::Xfs, uuid: "old".into() };
    assert!(copied_format(&formatting, &mount(FsType::Xfs), "new".into()).is_err());
}

#[test]
fn formatted_volume_never_becomes_formattable_again() {
    let formatting = |uuid: &str| FormatState::Formatting { fs: FsType::Ext4, uuid: uuid.into() };
    let formatted = |uuid: &str| FormatState::Formatted { fs: FsType::Ext4, uuid: uuid.into() };
    let copied = |uuid: &str| FormatState::Copied { fs: FsType::Ext4, uuid: uuid.into() };
    for (from, to) in [
        (FormatState::Blank, formatting("a")),
        (FormatState::Blank, FormatState::Raw),
        (formatting("a"), formatting("b")),
        (formatting("a"), formatted("a")),
        (copied("a"), formatted("a")),
        (formatted("a"), FormatState::Raw),
        (formatted("a"), formatted("a")),
    ] {
        assert!(is_allowed_transition(&from, &to), "{from:?} -> {to:?}");
    }
    for (from, to) in [
        (FormatState::Raw, FormatState::Blank),
        (FormatState::Raw, formatting("a")),
        (FormatState::Raw, formatted("a")),
        (formatted("a"), FormatState::Blank),
        (formatted("a"), formatting("a")),
        (formatted("a"), formatted("b")),
        (formatted("a"), copied("b")),
        (copied("a"), formatting("a")),
        (copied("a"), FormatState::Blank),
        (copied("a"), formatted("b")),
        (formatting("a"), FormatState::Blank),
        (formatting("a"), formatted("b")),
        (FormatState::Blank, formatted("a")),
    ] {
        assert!(!is_allowed_transition(&from, &to), "{from:?} -> {to:?}");
    }
}

fn record() -> VolumeRecord {
    VolumeRecord {
        version: VERSION,
        id: "vol-1".into(),
        name: "pvc".into(),
        created: Timestamp::now(),
        state: Phase::Ready,
        size: 8192,
        requested: None,
        growing_to: None,
        provisioning: Provisioning::Thin,
        access: vec![Access::Mount { fs: FsType::Xfs }],
        mkfs_options: vec![],
        source: None,
        format: FormatState::Blank,
        image_inode: None,
        attached: None,
        growing_offline: false,
    }
}

fn requested() -> NewVolume {
    NewVolume::new("pvc", vec![mount("xfs")]).size(SizeRange { required: 8192, limit: None })
}

#[test]
fn same_name_with_other_properties_is_incompatible() {
    type Change = fn(&mut NewVolume, &mut Parameters);
    let compatible: &[Change] = &[
        |_, _| (),
        |volume, _| volume.size = SizeRange { required: 0, limit: Some(8192) },
        |volume, _| volume.size = SizeRange { required: 4096, limit: None },
        |volume, _| volume.capabilities = vec![mount("")],
    ];
    let incompatible: &[(Change, &str)] = &[
        (|volume, _| volume.size.required = 8193, "8192 bytes"),
        (|volume, _| volume.size = SizeRange { required: 0, limit: Some(8191) }, "at most 8191"),
        (|volume, _| volume.source = Some(VolumeContentSource::Volume("vol-2".into())), "requested: vol-2"),
        (|_, p| p.provisioning = Provisioning::Thick, "requested: thick"),
        (|_, p| p.mkfs_options = vec!["-K".into()], "mkfsOptions"),
        (|volume, _| volume.capabilities = vec![mount("ext4")], "not for ext4"),
        (|volume, _| volume.capabilities.push(block()), "not as a raw device"),
        (|volume, _| volume.name = "other".into(), "a different name"),
    ];
    let check = |change: &Change| {
        let (mut requested, mut parameters) = (requested(), Parameters::default());
        change(&mut requested, &mut parameters);
        incompatibility(&record(), &requested, &parameters)
    };
    for change in compatible {
        assert_eq!(check(change), None);
    }
    for (change, expected) in incompatible {
        let message = check(change).unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn topology_terms_match_only_this_node() {
    let term = |pairs: &[(&str, &str)]| -> Topology {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    assert!(matches_node(&topology_of("n1"), "n1"));
    assert!(matches_node(&term(&[]), "n1"));
    assert!(!matches_node(&topology_of("n2"), "n1"));
    assert!(!matches_node(&term(&[(TOPOLOGY_KEY, "n1"), ("zone", "a")]), "n1"));
    assert!(!matches_node(&term(&[("zone", "a")]), "n1"));
    assert!(satisfies_topology(&[], "n1"));
    assert!(satisfies_topology(&[topology_of("n2"), topology_of("n1")], "n1"));
    assert!(!satisfies_topology(&[topology_of("n2")], "n1"));
}
