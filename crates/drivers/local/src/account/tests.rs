use super::*;

const GIB: u64 = 1 << 30;
const G: u128 = GIB as u128;

fn usage(used: u64, available: u64) -> FsUsage {
    FsUsage {
        used_bytes: used * GIB,
        available_bytes: available * GIB,
        total_bytes: (used + available) * GIB,
        ..FsUsage::default()
    }
}

fn config(overcommit: f64) -> Config {
    Config { overcommit, ..Config::new("n", "/pool") }
}

fn thin(size: u64, allocated: u64) -> Holding {
    let (size, allocated) = (size * GIB, allocated * GIB);
    Holding { provisioning: Provisioning::Thin, size, allocated, shared: 0 }
}

fn thick(size: u64, allocated: u64) -> Holding {
    Holding { provisioning: Provisioning::Thick, ..thin(size, allocated) }
}

/// All its blocks are shared with a snapshot.
fn with_snapshot(holding: Holding) -> Holding {
    Holding { shared: shared(holding.size, holding.allocated, false, Some(0)), ..holding }
}

fn facts(used: u64, available: u64, volumes: &[Holding]) -> Facts {
    Facts {
        usage: usage(used, available),
        sparse: None,
        volumes: volumes.to_vec(),
        copying: 0,
        snapshots: 0,
        snapshots_of_deleted_copies: 0,
        unreadable: 0,
    }
}

#[test]
fn unreadable_objects_keep_their_space() {
    let facts = Facts { unreadable: 30 * GIB, ..facts(0, 100, &[]) };
    let account = Account::of(&facts, &config(2.0));
    assert_eq!((account.outstanding, account.thick), (30 * G, 65 * GIB));
}

#[test]
fn changes_between_two_readings_count_against_new_promises() {
    for (before, after, used, available) in [
        (usage(40, 60), usage(30, 70), 40, 60),
        (usage(30, 70), usage(40, 60), 40, 60),
        (usage(30, 70), usage(30, 70), 30, 70),
    ] {
        let worst = worst(&before, &after);
        assert_eq!((worst.used_bytes, worst.available_bytes), (used * GIB, available * GIB));
        assert_eq!(worst.total_bytes, 100 * GIB);
    }
}

/// Used, available, volumes, overcommit ratio; thin, thick, fullness.
type Case<'a> = (u64, u64, &'a [Holding], f64, u64, u64, Fullness);

#[test]
fn room_by_usage_promises_and_overcommit() {
    use Fullness::*;
    let cases: &[Case<'_>] = &[
        (0, 100, &[], 1.0, 95, 95, Normal),
        (0, 100, &[], 2.0, 190, 95, Normal),
        // Promised and not written.
        (0, 100, &[thin(40, 0)], 1.0, 55, 55, Normal),
        (0, 100, &[thin(40, 0)], 2.0, 150, 75, Normal),
        (0, 100, &[thick(40, 0)], 2.0, 110, 55, Normal),
        (0, 100, &[thin(95, 0)], 1.0, 0, 0, Normal),
        (0, 100, &[thin(300, 0)], 2.0, 0, 0, Normal),
        // Written.
        (40, 60, &[thin(40, 40)], 1.0, 55, 55, Normal),
        (40, 60, &[thick(40, 40)], 2.0, 110, 55, Normal),
        // A hole in a thick volume stays reserved.
        (30, 70, &[thick(40, 30)], 1.0, 55, 55, Normal),
        // Files that are not the pool's.
        (50, 50, &[], 1.0, 45, 45, Normal),
        (50, 50, &[thin(40, 0)], 1.0, 5, 5, Normal),
        // Shared blocks can be needed a second time.
        (40, 60, &[with_snapshot(thin(50, 40))], 1.0, 5, 5, Normal),
        (40, 60, &[with_snapshot(thin(50, 40))], 2.0, 60, 30, Normal),
        (85, 15, &[thin(85, 85)], 1.0, 10, 10, NearlyFull),
        (95, 5, &[thin(95, 95)], 1.0, 0, 0, Full),
        (100, 0, &[], 2.0, 0, 0, Full),
        (0, 0, &[], 2.0, 0, 0, Full),
    ];
    for (used, available, volumes, ratio, expected_thin, expected_thick, fullness) in cases {
        let account = Account::of(&facts(*used, *available, volumes), &config(*ratio));
        assert_eq!(
            (account.thin / GIB, account.thick / GIB, account.fullness),
            (*expected_thin, *expected_thick, *fullness),
            "{used} {available} {volumes:?} {ratio}"
        );
    }
}

#[test]
fn sums_of_an_account() {
    let volumes = [thin(40, 10), thick(20, 20), with_snapshot(thin(10, 4))];
    let facts = Facts { copying: 3 * GIB, snapshots: 4 * GIB, ..facts(40, 160, &volumes) };
    let account = Account::of(&facts, &config(1.0));
    assert_eq!((account.size, account.used, account.free), (200 * GIB, 40 * GIB, 160 * GIB));
    assert_eq!((account.promised, account.allocated), (70 * G, 38 * GIB));
    assert_eq!(account.outstanding, (30 + 6 + 4 + 3) * G);
    assert_eq!((account.reserved_for_snapshots, account.reserved_for_records), (4 * G, 10 * GIB));
    assert_eq!(account.thick, (160 - 10 - 43) * GIB);
    let tiny = Account::of(&facts, &Config { full_threshold: 100, ..config(1.0) });
    assert_eq!(tiny.reserved_for_records, MIN_RESERVE);
}

/// N-H2: a sparse file cannot promise what the disk beneath it does not have.
#[test]
fn disk_beneath_a_sparse_pool_limits_it() {
    let cases = [
        // unallocated, free beneath -> thin, fullness
        (90, 200, 95, Fullness::Normal),
        (90, 30, 26, Fullness::Normal),
        (90, 4, 0, Fullness::Full),
        (90, 0, 0, Fullness::Full),
        // What the file lacks fits on the disk beneath.
        (15, 30, 95, Fullness::Normal),
        (2, 3, 0, Fullness::Normal),
        (2, 1, 0, Fullness::Full),
        // Every block of the file is allocated: the disk beneath does not matter.
        (0, 0, 95, Fullness::Normal),
    ];
    for (unallocated, beneath, thin, fullness) in cases {
        let sparse =
            Some(SparseFile { unallocated: unallocated * GIB, usage: usage(300 - beneath, beneath) });
        let account = Account::of(&Facts { sparse, ..facts(0, 100, &[]) }, &config(1.0));
        assert_eq!((account.thin / GIB, account.fullness), (thin, fullness), "{unallocated} {beneath}");
    }
}

#[test]
fn demands_are_refused_with_a_way_out() {
    let demand = |thin, thick, now| Demand { thin: thin * GIB, thick: thick * GIB, now: now * GIB };
    let cases = [
        // ratio, demand -> fits
        (1.0, demand(95, 0, 0), true),
        (1.0, demand(96, 0, 0), false),
        (1.0, demand(0, 95, 0), true),
        (1.0, demand(50, 46, 0), false),
        (2.0, demand(190, 0, 0), true),
        (2.0, demand(191, 0, 0), false),
        (2.0, demand(100, 45, 0), true),
        (2.0, demand(100, 46, 0), false),
        // A copy that takes its blocks at once cannot be overcommitted.
        (2.0, demand(100, 0, 95), true),
        (2.0, demand(100, 0, 96), false),
    ];
    for (ratio, demand, fits) in cases {
        let refusal = Account::of(&facts(0, 100, &[]), &config(ratio)).refuses(demand);
        assert_eq!(refusal.is_none(), fits, "{ratio} {demand:?}");
        assert!(refusal.is_none_or(|reason| reason.contains("wharf local grow")), "{ratio} {demand:?}");
    }
    let full = Account::of(&facts(96, 4, &[]), &config(1.0)).refuses(Demand::default()).unwrap();
    assert!(full.contains("is full (96% in use)") && full.contains("wharf local grow"), "{full}");
    // What GetCapacity reports can be created.
    for ratio in [1.0, 1.5, 3.0, 7.0, 1000.0] {
        let account = Account::of(&facts(1, 99, &[thin(33, 1)]), &config(ratio));
        assert_eq!(account.refuses(Demand { thin: account.thin, ..Demand::default() }), None, "{ratio}");
        assert_eq!(account.refuses(Demand { thick: account.thick, ..Demand::default() }), None, "{ratio}");
    }
}

/// Each row is a family of volumes that share the 10 bytes of the first one, with what its members account for.
#[test]
fn shared_blocks_are_reserved_once_for_each_further_owner() {
    let volume = |allocated, is_copy, largest| shared(100, allocated, is_copy, largest);
    // A volume alone, then with two snapshots.
    assert_eq!(volume(10, false, None), 0);
    assert_eq!(volume(10, false, Some(10)), 10);
    // A volume and its clone: one of them writes in place.
    assert_eq!(volume(10, false, None) + volume(10, true, None), 10);
    // The clone has a snapshot: both write elsewhere.
    assert_eq!(volume(10, false, None) + volume(10, true, Some(10)), 20);
    // The clone has discarded all that its snapshot and the first volume share.
    assert_eq!(volume(0, true, Some(10)), 10);
    // Never more than the size, each time.
    assert_eq!(shared(5, 10, true, Some(20)), 10);
}

#[test]
fn snapshot_of_a_deleted_copy_is_reserved() {
    let facts = Facts { snapshots: 8 * GIB, snapshots_of_deleted_copies: 8 * GIB, ..facts(40, 60, &[]) };
    let account = Account::of(&facts, &config(1.0));
    assert_eq!((account.reserved_for_snapshots, account.thick), (8 * G, (60 - 5 - 8) * GIB));
}

#[test]
fn huge_pools_do_not_overflow() {
    let half = u64::MAX / 2;
    let usage = FsUsage { used_bytes: half, available_bytes: half, ..FsUsage::default() };
    let account = Account::of(&Facts { usage, ..facts(0, 0, &[]) }, &config(1000.0));
    assert_eq!((account.thin, account.percent), (MAXIMUM, 50));
    let volumes = [Holding { size: u64::MAX, shared: u64::MAX, ..thin(0, 0) }; 3];
    assert_eq!(Account::of(&Facts { usage, ..facts(0, 0, &volumes) }, &config(1.0)).thin, 0);
}
