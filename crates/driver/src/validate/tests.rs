//! Tables for the validation rules.

use tonic::Code;
use v1::volume_capability::{AccessMode as WireMode, BlockVolume, MountVolume};

use super::*;

const RULES: Rules = Rules { mount_group: false, max_id: MAX_STRING };

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Status>, expected: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains(expected), "{:?} does not contain {expected:?}", status.message());
}

#[test]
fn ids_and_names_are_validated() {
    let (id_128, id_129) = ("x".repeat(128), "x".repeat(129));
    for good in ["v", "vol-1", "a/b", "..", "ä", "with space", id_128.as_str()] {
        RULES.id("volume_id", good).unwrap();
        name("name", good).unwrap();
        node_id("node_id", good).unwrap();
    }
    for (bad, expected) in [
        ("", "volume_id is required"),
        (id_129.as_str(), "volume_id must not be longer than 128 bytes"),
        ("a\0", "control"),
        ("a\n", "control"),
        ("\u{9f}", "control"),
    ] {
        refused(RULES.id("volume_id", bad), expected);
    }
    let longer = Rules { max_id: 200, ..RULES };
    longer.id("volume_id", &"x".repeat(200)).unwrap();
    refused(longer.id("volume_id", &"x".repeat(201)), "must not be longer than 200 bytes");
    node_id("node_id", &"x".repeat(256)).unwrap();
    refused(node_id("node_id", &"x".repeat(257)), "256");
    name("name", "a\tb\r\nc").unwrap();
    refused(name("name", "a\u{b}b"), "control");
    refused(name("name", &"x".repeat(1025)), "1024");
}

#[test]
fn paths_must_be_absolute_and_clean() {
    assert_eq!(path("target_path", "/var/lib/x").unwrap(), Path::new("/var/lib/x"));
    path("target_path", "/var/lib/..x/y..").unwrap();
    for (bad, expected) in [
        ("", "target_path is required"),
        ("var/lib", "absolute"),
        ("./x", "absolute"),
        ("/var/../etc", "\"..\""),
        ("/x/..", "\"..\""),
        ("/a\0", "control"),
    ] {
        refused(path("target_path", bad), expected);
    }
    refused(path("target_path", &format!("/{}", "x".repeat(4095))), "4095");
}

#[test]
fn maps_are_limited_and_kubernetes_keys_are_removed() {
    let of = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    map("parameters", &of("k", &"x".repeat(4095))).unwrap();
    refused(map("parameters", &of("k", &"x".repeat(4096))), "4 KiB");
    refused(map("parameters", &of("", "v")), "empty keys");
    refused(map("parameters", &of("k", "\0")), "NUL");

    let mut both = of("csi.storage.k8s.io/pvc/name", "p");
    both.extend(of("type", "thin"));
    assert_eq!(own_parameters(&both), of("type", "thin"));
}

#[test]
fn size_ranges_are_validated() {
    let range = |required_bytes, limit_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes });
    for (wire, required, limit) in [
        (None, 0, None),
        (range(0, 0), 0, None),
        (range(5, 0), 5, None),
        (range(0, 5), 0, Some(5)),
        (range(5, 5), 5, Some(5)),
        (range(i64::MAX, i64::MAX), i64::MAX.unsigned_abs(), Some(i64::MAX.unsigned_abs())),
    ] {
        assert_eq!(size("capacity_range", &wire).unwrap(), SizeRange { required, limit }, "{wire:?}");
        assert_eq!(
            required_size("capacity_range", &wire).is_ok(),
            required > 0 || limit.is_some(),
            "{wire:?}"
        );
    }
    refused(size("capacity_range", &range(-1, 0)), "capacity_range.required_bytes must not be negative");
    refused(size("capacity_range", &range(0, i64::MIN)), "capacity_range.limit_bytes must not be negative");
    refused(size("capacity_range", &range(6, 5)), "must not be greater");
    refused(required_size("capacity_range", &None), "capacity_range is required");
}

#[test]
fn every_access_mode_is_converted() {
    let block = |mode| {
        let access_type = Some(AccessType::Block(BlockVolume {}));
        RULES.capability(&Some(v1::VolumeCapability { access_type, access_mode: Some(WireMode { mode }) }))
    };
    let modes: Vec<AccessMode> = (1..=7).map(|mode| block(mode).unwrap().mode).collect();
    assert_eq!(
        modes,
        [
            AccessMode::SingleNodeWriter,
            AccessMode::SingleNodeReaderOnly,
            AccessMode::MultiNodeReaderOnly,
            AccessMode::MultiNodeSingleWriter,
            AccessMode::MultiNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter,
            AccessMode::SingleNodeMultiWriter,
        ]
    );
    refused(block(0), "access_mode is required");
    refused(block(8), "no mode of number 8");
    refused(block(-1), "no mode of number -1");
    refused(RULES.capability(&None), "volume_capability is required");
    refused(RULES.capabilities(&[]), "volume_capabilities is required");
    assert_eq!(RULES.any_capabilities(&[]).unwrap(), []);
}

#[test]
fn mount_capabilities_are_validated() {
    let mount = |mount| {
        let access_type = Some(AccessType::Mount(mount));
        RULES.capability(&Some(v1::VolumeCapability { access_type, access_mode: Some(WireMode { mode: 1 }) }))
    };
    let flags = vec!["noatime".to_owned(), "password=hunter2".to_owned()];
    let good = mount(MountVolume { fs_type: "xfs".into(), mount_flags: flags.clone(), ..Default::default() })
        .unwrap();
    assert_eq!(good.access, VolumeAccess::Mount(MountAccess::new("xfs").flags(flags)));
    assert!(!format!("{good:?}").contains("hunter2"), "flags may be secrets");

    refused(mount(MountVolume { fs_type: "x\0".into(), ..Default::default() }), "fs_type");
    refused(
        mount(MountVolume { volume_mount_group: "1000".into(), ..Default::default() }),
        "VOLUME_MOUNT_GROUP",
    );
    let secret = format!("password=hunter2\0{}", "x".repeat(5000));
    let status = mount(MountVolume { mount_flags: vec![secret], ..Default::default() }).unwrap_err();
    assert!(!status.message().contains("hunter2"), "{status}");
}

#[test]
fn mount_group_is_a_number_if_the_driver_declares_it() {
    let mount = |group: &str| {
        let mount = MountVolume { volume_mount_group: group.to_owned(), ..Default::default() };
        let access_type = Some(AccessType::Mount(mount));
        let access_mode = Some(WireMode { mode: 1 });
        Rules { mount_group: true, ..RULES }
            .capability(&Some(v1::VolumeCapability { access_type, access_mode }))
    };
    for (group, expected) in [("", None), ("0", Some(0)), ("1000", Some(1000))] {
        let access = VolumeAccess::Mount(MountAccess::new("").mount_group(expected));
        assert_eq!(mount(group).unwrap().access, access, "{group}");
    }
    for bad in ["staff", "-1", "1000,exec", "4294967296", " 1"] {
        refused(mount(bad), "volume_capability.mount.volume_mount_group must be the number of a group");
    }
}

#[test]
fn topology_requirements_are_validated() {
    let of = |value: &str| v1::Topology { segments: [("zone".to_owned(), value.to_owned())].into() };
    let requirement = |requisite, preferred| Some(v1::TopologyRequirement { requisite, preferred });
    assert_eq!(topology_requirement(&None).unwrap(), (vec![], vec![]));
    let (requisite, preferred) =
        topology_requirement(&requirement(vec![of("a"), of("b")], vec![of("b")])).unwrap();
    assert_eq!((requisite, preferred), (vec![of("a").segments, of("b").segments], vec![of("b").segments]));
    refused(topology_requirement(&requirement(vec![], vec![])), "requisite or preferred");
    refused(
        topology_requirement(&requirement(vec![of("\0")], vec![])),
        "accessibility_requirements.requisite",
    );
}
