//! The table of device states, without a device. `tests/node_format.rs` has it with real ones.

use super::*;

const OURS: &str = "11111111-2222-4333-8444-555555555555";
const THEIRS: &str = "99999999-2222-4333-8444-555555555555";
const SIZE: u64 = 1 << 30;

fn fs(fs: FsType, uuid: &str) -> Probe {
    Probe::Filesystem { fs, uuid: uuid.into() }
}

fn probes() -> Vec<Probe> {
    vec![
        Probe::Nothing,
        fs(FsType::Ext4, OURS),
        fs(FsType::Ext4, THEIRS),
        fs(FsType::Xfs, OURS),
        Probe::Foreign { what: "a LUKS header".into() },
        Probe::Damaged { fs: Some(FsType::Ext4), what: "ext4 whose superblock is torn".into() },
        Probe::Damaged { fs: Some(FsType::Xfs), what: "xfs whose superblock is torn".into() },
        Probe::Damaged { fs: None, what: "a torn ext4, and a LUKS header".into() },
    ]
}

fn records() -> Vec<Option<Format>> {
    let (fs, uuid) = (FsType::Ext4, OURS.to_owned());
    vec![
        None,
        Some(Format::Blank),
        Some(Format::Formatting { fs, uuid: uuid.clone() }),
        Some(Format::Formatted { fs, uuid: uuid.clone() }),
        Some(Format::Copied { fs, uuid }),
        Some(Format::Raw),
    ]
}

const ZEROES: [ZeroProof; 3] = [ZeroProof::NotTaken, ZeroProof::AllZero, ZeroProof::NonZero { offset: 5 }];

fn evidence<'a>(record: &'a Option<Format>, probe: &'a Probe, zero: ZeroProof) -> Evidence<'a> {
    let record = record.as_ref();
    let wanted = Some(FsType::Ext4);
    let (reader_only, device_read_only, never_formats) = (false, false, false);
    Evidence { record, probe, zero, wanted, size: SIZE, reader_only, device_read_only, never_formats }
}

/// One word for each decision, so that the table below can be read.
fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Format { .. } => "format",
        Decision::Remake { .. } => "remake",
        Decision::Adopt { .. } => "adopt",
        Decision::Mount { .. } => "mount",
        Decision::RenewUuid { .. } => "renew",
        Decision::Refuse(_) => "refuse",
    }
}

#[test]
fn every_record_with_every_finding() {
    // Columns: nothing, own, other UUID, other type, foreign, damaged ext4, damaged xfs, damaged and more. Read as all zero.
    let table = [
        ["format", "mount", "mount", "refuse", "refuse", "refuse", "refuse", "refuse"], // no record kept
        ["format", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"], // blank
        ["remake", "adopt", "refuse", "refuse", "refuse", "remake", "refuse", "refuse"], // formatting
        ["refuse", "mount", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"], // formatted
        ["refuse", "renew", "renew", "refuse", "refuse", "refuse", "refuse", "refuse"], // copied
        ["refuse", "mount", "mount", "refuse", "refuse", "refuse", "refuse", "refuse"], // raw
    ];
    for (record, row) in records().iter().zip(table) {
        for (probe, expected) in probes().iter().zip(row) {
            let decision = decide(&evidence(record, probe, ZeroProof::AllZero));
            assert_eq!(word(&decision), expected, "{record:?} {probe:?}: {decision:?}");
        }
    }
}

#[test]
fn without_the_zero_proof_nothing_is_formatted_for_the_first_time() {
    for record in &records() {
        for probe in &probes() {
            for zero in [ZeroProof::NotTaken, ZeroProof::NonZero { offset: 5 }] {
                let decision = decide(&evidence(record, probe, zero));
                assert_ne!(word(&decision), "format", "{record:?} {probe:?} {zero:?}");
                if needs_zero_proof(record.as_ref(), probe) {
                    assert_eq!(word(&decision), "refuse", "{record:?} {probe:?} {zero:?}");
                }
            }
        }
    }
}

#[test]
fn only_a_volume_that_nobody_can_have_mounted_is_made_anew() {
    for record in &records() {
        for probe in &probes() {
            for zero in ZEROES {
                let writes = matches!(word(&decide(&evidence(record, probe, zero))), "format" | "remake");
                let fresh = matches!(record, None | Some(Format::Blank))
                    && *probe == Probe::Nothing
                    && zero == ZEROES[1];
                let ours = matches!(record, Some(Format::Formatting { .. }));
                assert!(!writes || fresh || ours, "{record:?} {probe:?} {zero:?}");
            }
        }
    }
}

#[test]
fn the_recorded_uuid_is_kept() {
    let (fs, uuid) = (FsType::Ext4, OURS.to_owned());
    let cases = [
        (&records()[2], Probe::Nothing, Decision::Remake { fs, uuid: uuid.clone() }),
        (&records()[2], probes()[1].clone(), Decision::Adopt { fs, uuid: uuid.clone() }),
        (&records()[4], probes()[2].clone(), Decision::RenewUuid { fs, uuid }),
    ];
    for (record, probe, expected) in cases {
        assert_eq!(decide(&evidence(record, &probe, ZeroProof::NotTaken)), expected);
    }
}

#[test]
fn the_type_that_is_asked_for_is_never_forced() {
    for record in &records()[2..5] {
        for probe in &probes() {
            let wanted = Some(FsType::Btrfs);
            let decision = decide(&Evidence { wanted, ..evidence(record, probe, ZeroProof::AllZero) });
            assert_eq!(word(&decision), "refuse", "{record:?} {probe:?}");
        }
    }
    let no_wish = |record: &Option<Format>, probe: &Probe| {
        decide(&Evidence { wanted: None, ..evidence(record, probe, ZeroProof::AllZero) })
    };
    assert_eq!(no_wish(&None, &Probe::Nothing), Decision::Format { fs: FsType::Ext4 });
    assert_eq!(no_wish(&None, &fs(FsType::Xfs, OURS)), Decision::Mount { fs: FsType::Xfs });
    let record = Some(Format::Formatted { fs: FsType::Xfs, uuid: OURS.into() });
    assert_eq!(no_wish(&record, &fs(FsType::Xfs, OURS)), Decision::Mount { fs: FsType::Xfs });
}

#[test]
fn nothing_is_written_for_a_reader_or_to_a_read_only_device() {
    for record in &records() {
        for probe in &probes() {
            let all = evidence(record, probe, ZeroProof::AllZero);
            let reader = decide(&Evidence { reader_only: true, ..all });
            assert!(!matches!(word(&reader), "format" | "remake"), "{record:?} {probe:?}");
            let device = decide(&Evidence { device_read_only: true, ..all });
            assert!(!matches!(word(&device), "format" | "remake" | "renew"), "{record:?} {probe:?}");
            if word(&decide(&all)) == "mount" {
                assert_eq!((word(&reader), word(&device)), ("mount", "mount"), "{record:?} {probe:?}");
            }
        }
    }
}

#[test]
fn too_small_is_said_before_anything_is_written() {
    let wanted = Some(FsType::Xfs);
    let small = Evidence { wanted, size: 100 << 20, ..evidence(&None, &Probe::Nothing, ZeroProof::AllZero) };
    assert!(matches!(decide(&small), Decision::Refuse(Refusal::TooSmall { .. })));
}

#[test]
fn a_refusal_says_what_was_found_and_what_to_do() {
    let cases = [
        (Some(Format::Blank), probes()[4].clone(), "a LUKS header", "delete"),
        (Some(Format::Blank), probes()[1].clone(), OURS, "swapped"),
        (Some(Format::Formatted { fs: FsType::Ext4, uuid: OURS.into() }), Probe::Nothing, OURS, "restore"),
        (
            Some(Format::Formatted { fs: FsType::Ext4, uuid: OURS.into() }),
            probes()[2].clone(),
            THEIRS,
            "restore",
        ),
        (Some(Format::Raw), Probe::Nothing, "raw device", "block volume"),
    ];
    for (record, probe, found, way_out) in cases {
        let Decision::Refuse(refusal) = decide(&evidence(&record, &probe, ZeroProof::NotTaken)) else {
            panic!("{record:?} {probe:?} was not refused");
        };
        let message = refusal.to_string();
        assert!(message.contains(found) && message.contains(way_out), "{message}");
    }
}

#[test]
fn where_it_is_forbidden_nothing_is_ever_made() {
    for record in &records() {
        for probe in &probes() {
            let allowed = evidence(record, probe, ZeroProof::AllZero);
            let decision = decide(&Evidence { never_formats: true, ..allowed });
            match word(&decide(&allowed)) {
                "format" | "remake" => assert_eq!(decision, Decision::Refuse(Refusal::NeverFormats)),
                other => assert_eq!(word(&decision), other),
            }
        }
    }
}
