//! The table of device states without a device. `tests/node/format.rs` has the same table with real devices.

use super::*;

const OURS: &str = "11111111-2222-4333-8444-555555555555";
const THEIRS: &str = "99999999-2222-4333-8444-555555555555";
const SIZE: u64 = 1 << 30;

fn fs(fs: FsType, uuid: &str) -> ProbeResult {
    ProbeResult::Filesystem { fs, uuid: uuid.into() }
}

fn probes() -> Vec<ProbeResult> {
    vec![
        ProbeResult::NoSignature,
        fs(FsType::Ext4, OURS),
        fs(FsType::Ext4, THEIRS),
        fs(FsType::Xfs, OURS),
        ProbeResult::Foreign { what: "a LUKS header".into() },
        ProbeResult::Damaged { fs: Some(FsType::Ext4), what: "ext4 whose superblock is torn".into() },
        ProbeResult::Damaged { fs: Some(FsType::Xfs), what: "xfs whose superblock is torn".into() },
        ProbeResult::Damaged { fs: None, what: "a torn ext4, and a LUKS header".into() },
    ]
}

fn records() -> Vec<Option<FormatState>> {
    let (fs, uuid) = (FsType::Ext4, OURS.to_owned());
    vec![
        None,
        Some(FormatState::Blank),
        Some(FormatState::Formatting { fs, uuid: uuid.clone() }),
        Some(FormatState::Formatted { fs, uuid: uuid.clone() }),
        Some(FormatState::Copied { fs, uuid }),
        Some(FormatState::Raw),
    ]
}

const ZEROES: [ZeroProof; 3] = [ZeroProof::NotTaken, ZeroProof::AllZero, ZeroProof::NonZero { offset: 5 }];

fn evidence<'a>(record: &'a Option<FormatState>, probe: &'a ProbeResult, zero: ZeroProof) -> Evidence<'a> {
    let record = record.as_ref();
    let wanted = Some(FsType::Ext4);
    let (reader_only, device_read_only, formatting_disabled) = (false, false, false);
    Evidence { record, probe, zero, wanted, size: SIZE, reader_only, device_read_only, formatting_disabled }
}

/// A short name for each decision, for the table below.
fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Format { .. } => "format",
        Decision::Reformat { .. } => "reformat",
        Decision::Mount { .. } => "mount",
        Decision::RenewUuid { .. } => "renew",
        Decision::Refuse(_) => "refuse",
    }
}

#[test]
fn decision_table_covers_every_record_and_probe_result() {
    // Columns: nothing, own, other UUID, other type, foreign, damaged ext4, damaged xfs, damaged and more. Read as all zero.
    let table = [
        ["format", "mount", "mount", "refuse", "refuse", "refuse", "refuse", "refuse"], // no record kept
        ["format", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"], // blank
        ["reformat", "reformat", "refuse", "refuse", "refuse", "reformat", "refuse", "refuse"], // formatting
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
fn first_format_requires_the_zero_proof() {
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
fn only_a_never_mounted_volume_is_formatted() {
    for record in &records() {
        for probe in &probes() {
            for zero in ZEROES {
                let writes = matches!(word(&decide(&evidence(record, probe, zero))), "format" | "reformat");
                let fresh = matches!(record, None | Some(FormatState::Blank))
                    && *probe == ProbeResult::NoSignature
                    && zero == ZEROES[1];
                let ours = matches!(record, Some(FormatState::Formatting { .. }));
                assert!(!writes || fresh || ours, "{record:?} {probe:?} {zero:?}");
            }
        }
    }
}

#[test]
fn recorded_uuid_is_used() {
    let (fs, uuid) = (FsType::Ext4, OURS.to_owned());
    let cases = [
        (&records()[2], ProbeResult::NoSignature, Decision::Reformat { fs, uuid: uuid.clone() }),
        (&records()[2], probes()[1].clone(), Decision::Reformat { fs, uuid: uuid.clone() }),
        (&records()[4], probes()[2].clone(), Decision::RenewUuid { fs, uuid }),
    ];
    for (record, probe, expected) in cases {
        assert_eq!(decide(&evidence(record, &probe, ZeroProof::NotTaken)), expected);
    }
}

#[test]
fn requested_type_never_replaces_an_existing_one() {
    for record in &records()[2..5] {
        for probe in &probes() {
            let wanted = Some(FsType::Btrfs);
            let decision = decide(&Evidence { wanted, ..evidence(record, probe, ZeroProof::AllZero) });
            assert_eq!(word(&decision), "refuse", "{record:?} {probe:?}");
        }
    }
    let any_type = |record: &Option<FormatState>, probe: &ProbeResult| {
        decide(&Evidence { wanted: None, ..evidence(record, probe, ZeroProof::AllZero) })
    };
    assert_eq!(any_type(&None, &ProbeResult::NoSignature), Decision::Format { fs: FsType::Ext4 });
    assert_eq!(any_type(&None, &fs(FsType::Xfs, OURS)), Decision::Mount { fs: FsType::Xfs });
    let record = Some(FormatState::Formatted { fs: FsType::Xfs, uuid: OURS.into() });
    assert_eq!(any_type(&record, &fs(FsType::Xfs, OURS)), Decision::Mount { fs: FsType::Xfs });
}

#[test]
fn reader_or_read_only_device_is_never_formatted() {
    for record in &records() {
        for probe in &probes() {
            let all = evidence(record, probe, ZeroProof::AllZero);
            let reader = decide(&Evidence { reader_only: true, ..all });
            assert!(!matches!(word(&reader), "format" | "reformat"), "{record:?} {probe:?}");
            let device = decide(&Evidence { device_read_only: true, ..all });
            assert!(!matches!(word(&device), "format" | "reformat" | "renew"), "{record:?} {probe:?}");
            if word(&decide(&all)) == "mount" {
                assert_eq!((word(&reader), word(&device)), ("mount", "mount"), "{record:?} {probe:?}");
            }
        }
    }
}

#[test]
fn device_too_small_is_refused() {
    let wanted = Some(FsType::Xfs);
    let small = Evidence {
        wanted,
        size: 100 << 20,
        ..evidence(&None, &ProbeResult::NoSignature, ZeroProof::AllZero)
    };
    assert!(matches!(decide(&small), Decision::Refuse(Refusal::TooSmall { .. })));
}

#[test]
fn refusal_names_the_finding_and_the_remedy() {
    let cases = [
        (Some(FormatState::Blank), probes()[4].clone(), "a LUKS header", "delete"),
        (Some(FormatState::Blank), probes()[1].clone(), OURS, "swapped"),
        (
            Some(FormatState::Formatted { fs: FsType::Ext4, uuid: OURS.into() }),
            ProbeResult::NoSignature,
            OURS,
            "restore",
        ),
        (
            Some(FormatState::Formatted { fs: FsType::Ext4, uuid: OURS.into() }),
            probes()[2].clone(),
            THEIRS,
            "restore",
        ),
        (Some(FormatState::Raw), ProbeResult::NoSignature, "raw device", "block volume"),
    ];
    for (record, probe, found, remedy) in cases {
        let Decision::Refuse(refusal) = decide(&evidence(&record, &probe, ZeroProof::NotTaken)) else {
            panic!("{record:?} {probe:?} was not refused");
        };
        let message = refusal.to_string();
        assert!(message.contains(found) && message.contains(remedy), "{message}");
    }
}

#[test]
fn disabled_formatting_refuses_every_format() {
    for record in &records() {
        for probe in &probes() {
            let allowed = evidence(record, probe, ZeroProof::AllZero);
            let decision = decide(&Evidence { formatting_disabled: true, ..allowed });
            match word(&decide(&allowed)) {
                "format" | "reformat" => assert_eq!(decision, Decision::Refuse(Refusal::FormattingDisabled)),
                other => assert_eq!(word(&decision), other),
            }
        }
    }
}
