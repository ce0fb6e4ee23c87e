//! Tables of the decisions.

use super::*;
use crate::Provisioning;
use crate::record::{Moment, Phase, VERSION};

fn mount(fs_type: &str) -> Capability {
    let access = VolumeAccess::Mount { fs_type: fs_type.into(), flags: vec![] };
    Capability { access, mode: AccessMode::SingleNodeWriter }
}

fn block() -> Capability {
    Capability { access: VolumeAccess::Block, mode: AccessMode::SingleNodeWriter }
}

fn formatted(fs: FsType) -> Format {
    Format::Formatted { fs, uuid: "old".into() }
}

#[test]
fn access_modes() {
    use AccessMode::*;
    for (mode, possible) in [
        (SingleNodeWriter, true),
        (SingleNodeReaderOnly, true),
        (SingleNodeSingleWriter, true),
        (SingleNodeMultiWriter, true),
        (MultiNodeReaderOnly, false),
        (MultiNodeSingleWriter, false),
        (MultiNodeMultiWriter, false),
    ] {
        assert_eq!(refuses(&Capability { mode, ..block() }).is_none(), possible, "{mode:?}");
    }
    assert!(refuses(&mount("ntfs")).is_some_and(|why| why.contains("ntfs")));
    for fs in ["", "ext4", "xfs", "btrfs"] {
        assert_eq!(refuses(&mount(fs)), None);
    }
}

#[test]
fn ways_of_use() {
    let ext4 = Access::Mount { fs: FsType::Ext4 };
    let xfs = Access::Mount { fs: FsType::Xfs };
    assert_eq!(access(&[mount("")], None), Ok(vec![ext4]));
    assert_eq!(access(&[mount("")], Some(FsType::Xfs)), Ok(vec![xfs]));
    assert_eq!(access(&[mount(""), mount("ext4"), block()], None), Ok(vec![ext4, Access::Block]));
    assert_eq!(access(&[mount("xfs")], Some(FsType::Ext4)), Ok(vec![xfs]));
    assert!(access(&[mount("xfs"), mount("ext4")], None).is_err());
    assert_eq!(minimum(&[xfs]), FsType::Xfs.minimum_size());
    assert_eq!(minimum(&[Access::Block]), 0);
}

#[test]
fn what_a_copy_holds() {
    let mount = |fs| vec![Access::Mount { fs }];
    let new = |fs| Ok(Format::Copied { fs, uuid: "new".into() });
    let cases = [
        (Format::Blank, mount(FsType::Ext4), Ok(Format::Blank)),
        (Format::Blank, vec![Access::Block], Ok(Format::Blank)),
        (Format::Raw, vec![Access::Block], Ok(Format::Raw)),
        (Format::Raw, mount(FsType::Ext4), Ok(Format::Raw)),
        (formatted(FsType::Xfs), mount(FsType::Xfs), new(FsType::Xfs)),
        (Format::Copied { fs: FsType::Xfs, uuid: "old".into() }, mount(FsType::Xfs), new(FsType::Xfs)),
        (formatted(FsType::Xfs), vec![Access::Block], Ok(Format::Raw)),
        (formatted(FsType::Xfs), vec![Access::Block, Access::Mount { fs: FsType::Xfs }], new(FsType::Xfs)),
    ];
    for (source, access, expected) in cases {
        assert_eq!(copied(&source, &access, "new".into()), expected, "{source:?} {access:?}");
    }
    assert!(copied(&formatted(FsType::Xfs), &mount(FsType::Ext4), "new".into()).is_err());
    let formatting = Format::Formatting { fs: FsType::Xfs, uuid: "old".into() };
    assert!(copied(&formatting, &mount(FsType::Xfs), "new".into()).is_err());
}

#[test]
fn the_record_never_goes_back_to_where_a_format_is_allowed() {
    let formatting = |uuid: &str| Format::Formatting { fs: FsType::Ext4, uuid: uuid.into() };
    let formatted = |uuid: &str| Format::Formatted { fs: FsType::Ext4, uuid: uuid.into() };
    let copied = |uuid: &str| Format::Copied { fs: FsType::Ext4, uuid: uuid.into() };
    for (from, to) in [
        (Format::Blank, formatting("a")),
        (Format::Blank, Format::Raw),
        (formatting("a"), formatting("b")),
        (formatting("a"), formatted("a")),
        (copied("a"), formatted("a")),
        (formatted("a"), Format::Raw),
        (formatted("a"), formatted("a")),
    ] {
        assert!(may_become(&from, &to), "{from:?} -> {to:?}");
    }
    for (from, to) in [
        (Format::Raw, Format::Blank),
        (Format::Raw, formatting("a")),
        (Format::Raw, formatted("a")),
        (formatted("a"), Format::Blank),
        (formatted("a"), formatting("a")),
        (formatted("a"), formatted("b")),
        (formatted("a"), copied("b")),
        (copied("a"), formatting("a")),
        (copied("a"), Format::Blank),
        (copied("a"), formatted("b")),
        (formatting("a"), Format::Blank),
        (formatting("a"), formatted("b")),
        (Format::Blank, formatted("a")),
    ] {
        assert!(!may_become(&from, &to), "{from:?} -> {to:?}");
    }
}

fn record() -> VolumeRecord {
    VolumeRecord {
        version: VERSION,
        id: "vol-1".into(),
        name: "pvc".into(),
        created: Moment::now(),
        state: Phase::Ready,
        size: 8192,
        growing_to: None,
        provisioning: Provisioning::Thin,
        access: vec![Access::Mount { fs: FsType::Xfs }],
        mkfs_options: vec![],
        source: None,
        format: Format::Blank,
        image_inode: None,
        attached: None,
    }
}

fn wanted() -> NewVolume {
    NewVolume {
        name: "pvc".into(),
        size: SizeRange { required: 8192, limit: None },
        capabilities: vec![mount("xfs")],
        parameters: Default::default(),
        secrets: Default::default(),
        source: None,
        requisite: vec![],
        preferred: vec![],
    }
}

#[test]
fn same_name_same_volume() {
    type Change = fn(&mut NewVolume, &mut Parameters);
    let compatible: &[Change] = &[
        |_, _| (),
        |w, _| w.size = SizeRange { required: 0, limit: Some(8192) },
        |w, _| w.size = SizeRange { required: 4096, limit: None },
        |w, _| w.capabilities = vec![mount("")],
    ];
    let incompatible: &[(Change, &str)] = &[
        (|w, _| w.size.required = 8193, "8192 bytes"),
        (|w, _| w.size = SizeRange { required: 0, limit: Some(8191) }, "at most 8191"),
        (|w, _| w.source = Some(Source::Volume("vol-2".into())), "asked for: vol-2"),
        (|_, p| p.provisioning = Provisioning::Thick, "asked for: thick"),
        (|_, p| p.mkfs_options = vec!["-K".into()], "mkfsOptions"),
        (|w, _| w.capabilities = vec![mount("ext4")], "not for ext4"),
        (|w, _| w.capabilities.push(block()), "not as a raw device"),
        (|w, _| w.name = "other".into(), "another name"),
    ];
    let ask = |change: &Change| {
        let (mut wanted, mut parameters) = (wanted(), Parameters::default());
        change(&mut wanted, &mut parameters);
        differs(&record(), &wanted, &parameters)
    };
    for change in compatible {
        assert_eq!(ask(change), None);
    }
    for (change, expected) in incompatible {
        let said = ask(change).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn topology() {
    let term = |pairs: &[(&str, &str)]| -> Topology {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    assert!(is_here(&topology_of("n1"), "n1"));
    assert!(is_here(&term(&[]), "n1"));
    assert!(!is_here(&topology_of("n2"), "n1"));
    assert!(!is_here(&term(&[(TOPOLOGY_KEY, "n1"), ("zone", "a")]), "n1"));
    assert!(!is_here(&term(&[("zone", "a")]), "n1"));
    assert!(is_reachable(&[], "n1"));
    assert!(is_reachable(&[topology_of("n2"), topology_of("n1")], "n1"));
    assert!(!is_reachable(&[topology_of("n2")], "n1"));
}
