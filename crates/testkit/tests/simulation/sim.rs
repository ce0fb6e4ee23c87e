//! What one seed decides: every choice, every fault, every random byte of the product; and what is written down of it.
//!
//! Promise: all of it comes from one stream of numbers and from virtual time, so the same seed gives the same trace.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use wharf_model::Time;
use wharf_model::chance::StandIn;

use crate::planted::Bug;

/// When virtual time begins, in milliseconds since 1970.
const BEGIN: i64 = 1_767_225_600_000;
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// One run of one seed.
pub(crate) struct Sim {
    numbers: Mutex<u64>,
    trace: Mutex<String>,
    violations: Mutex<Vec<String>>,
    began: Instant,
    /// Whether calls fail.
    storm: AtomicBool,
    /// How many of a hundred requests to the API fail in a storm; a seed's own. Of calls to the driver, which are few, twice
    /// as many.
    pub(crate) rough: usize,
    /// The nodes of the cluster: two, or sometimes three, which take longer.
    pub(crate) nodes: &'static [&'static str],
    /// What is wrong on purpose.
    pub(crate) bug: Option<Bug>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Sim {
    /// Within a runtime whose time is paused.
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Arc<Self> {
        let mut sim = Self {
            numbers: Mutex::new(seed),
            trace: Mutex::default(),
            violations: Mutex::default(),
            began: Instant::now(),
            storm: AtomicBool::new(false),
            rough: 0,
            nodes: &NODES,
            bug,
        };
        sim.rough = [0, 4, 8, 14][sim.roll(4)];
        sim.nodes = if sim.roll(4) == 0 { &NODES } else { &NODES[..2] };
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

    /// A number below so many.
    pub(crate) fn roll(&self, sides: usize) -> usize {
        (self.next() % sides.max(1) as u64) as usize
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// A time up to this, in milliseconds.
    pub(crate) fn within(&self, most: Duration) -> Duration {
        Duration::from_millis(self.roll(most.as_millis() as usize + 1) as u64)
    }

    /// Whether this request to the API fails.
    pub(crate) fn fails(&self) -> bool {
        self.storms() && self.roll(100) < self.rough
    }

    /// Whether this call to the driver does.
    pub(crate) fn driver_fails(&self) -> bool {
        self.storms() && self.roll(100) < 2 * self.rough
    }

    pub(crate) fn storms(&self) -> bool {
        self.storm.load(Ordering::Relaxed)
    }

    pub(crate) fn set_storm(&self, storm: bool) {
        self.storm.store(storm, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Virtual time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes down what happens.
    pub(crate) fn note(&self, what: impl std::fmt::Display) {
        let elapsed = self.elapsed();
        // Writing to a string cannot fail.
        let _ = writeln!(lock(&self.trace), "{:>8}.{:03} {what}", elapsed.as_secs(), elapsed.subsec_millis());
    }

    /// Something that must never be has come about.
    pub(crate) fn violated(&self, what: String) {
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

/// Time and chance of the product while it is simulated.
pub(crate) struct Product(pub(crate) Arc<Sim>);

impl StandIn for Product {
    fn now(&mut self) -> Time {
        Time(BEGIN).plus(self.0.elapsed())
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.0.next().to_le_bytes()[..piece.len()]);
        }
    }
}
