//! Everything that a seed determines: choices, faults, and the random bytes that the product uses. It also records
//! the trace.
//!
//! Guarantee: all of it derives from one stream of numbers and from virtual time, so the same seed gives the same
//! trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use wharf_model::system::SystemOverride;
use wharf_model::{Monotonic, Time};

use crate::planted::Bug;

/// The start of virtual time, in milliseconds since 1970.
const BEGIN: i64 = 1_767_225_600_000;
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// One run of one seed.
pub(crate) struct Sim {
    numbers: Mutex<u64>,
    trace: Mutex<String>,
    violations: Mutex<Vec<String>>,
    started: Instant,
    /// Whether requests and calls may fail.
    faults_enabled: AtomicBool,
    /// By how many milliseconds users have set the wall clock forward.
    wall_clock_offset: AtomicI64,
    /// The processes that do not reach the API, and until when.
    partitions: Mutex<BTreeMap<String, Instant>>,
    /// The percentage of API requests that fail while faults are enabled; depends on the seed. Driver calls are
    /// rarer and fail twice as often.
    pub(crate) fault_percent: usize,
    /// The nodes of the cluster: usually two, sometimes three, which takes longer.
    pub(crate) nodes: &'static [&'static str],
    /// The planted bug.
    pub(crate) bug: Option<Bug>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Sim {
    /// Must run in a runtime with paused time.
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Arc<Self> {
        let mut sim = Self {
            numbers: Mutex::new(seed),
            trace: Mutex::default(),
            violations: Mutex::default(),
            started: Instant::now(),
            faults_enabled: AtomicBool::new(false),
            wall_clock_offset: AtomicI64::new(0),
            partitions: Mutex::default(),
            fault_percent: 0,
            nodes: &NODES,
            bug,
        };
        sim.fault_percent = [0, 4, 8, 14][sim.below(4)];
        sim.nodes = if sim.below(4) == 0 { &NODES } else { &NODES[..2] };
        Arc::new(sim)
    }

    /// The next number (splitmix64).
    fn next(&self) -> u64 {
        let mut state = lock(&self.numbers);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A random element.
    pub(crate) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A random duration of whole milliseconds, at most `most`.
    pub(crate) fn duration_up_to(&self, most: Duration) -> Duration {
        Duration::from_millis(self.below(most.as_millis() as usize + 1) as u64)
    }

    /// Whether this API request fails.
    pub(crate) fn fails(&self) -> bool {
        self.faults_enabled() && self.below(100) < self.fault_percent
    }

    /// Whether this driver call fails.
    pub(crate) fn driver_fails(&self) -> bool {
        self.faults_enabled() && self.below(100) < 2 * self.fault_percent
    }

    pub(crate) fn faults_enabled(&self) -> bool {
        self.faults_enabled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_faults_enabled(&self, faults_enabled: bool) {
        self.faults_enabled.store(faults_enabled, Ordering::Relaxed);
    }

    /// Sets the wall clock forward or back.
    pub(crate) fn set_wall_clock_by(&self, milliseconds: i64) {
        self.note(format_args!("wall clock set by {} s", milliseconds / 1000));
        self.wall_clock_offset.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// Separates a process from the API: its requests get no response and its watches deliver nothing.
    pub(crate) fn partition(&self, process: &str, time: Duration) {
        self.note(format_args!("{process} partitioned for {time:?}"));
        lock(&self.partitions).insert(process.to_owned(), Instant::now() + time);
    }

    /// Until when a process does not reach the API.
    pub(crate) fn partitioned_until(&self, process: &str) -> Option<Instant> {
        let until = lock(&self.partitions).get(process).copied()?;
        (self.faults_enabled() && Instant::now() < until).then_some(until)
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Virtual time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, what: impl std::fmt::Display) {
        let elapsed = self.elapsed();
        // Writing to a string cannot fail.
        let _ = writeln!(lock(&self.trace), "{:>8}.{:03} {what}", elapsed.as_secs(), elapsed.subsec_millis());
    }

    /// Records the violation of an invariant.
    pub(crate) fn record_violation(&self, what: String) {
        self.note(format_args!("VIOLATION {what}"));
        lock(&self.violations).push(what);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    pub(crate) fn trace(&self) -> String {
        lock(&self.trace).clone()
    }
}

/// The clock and the random numbers of the simulated product.
pub(crate) struct SeededSystem(pub(crate) Arc<Sim>);

impl SystemOverride for SeededSystem {
    fn now(&mut self) -> Time {
        Time(BEGIN + self.0.wall_clock_offset.load(Ordering::Relaxed)).plus(self.0.elapsed())
    }

    fn monotonic(&mut self) -> Monotonic {
        Monotonic(0).plus(self.0.elapsed())
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.0.next().to_le_bytes()[..piece.len()]);
        }
    }
}
