//! The clocks and randomness. All components take them from here, so that a simulation can replace them and be
//! reproduced exactly.
//!
//! Guarantees: without an override these are the system's clocks and randomness. An override applies to its own thread,
//! until its guard is dropped.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::time::Instant;

use crate::{Monotonic, Time};

pub use getrandom::Error as RandomError;

/// The clocks and randomness of a simulation.
pub trait SystemOverride {
    /// The current wall time.
    fn now(&mut self) -> Time;
    /// The current monotonic time.
    fn monotonic(&mut self) -> Monotonic;
    /// Fills `bytes` with simulated randomness.
    fn fill_random(&mut self, bytes: &mut [u8]);
}

thread_local! {
    static OVERRIDE: RefCell<Option<Box<dyn SystemOverride>>> = const { RefCell::new(None) };
}

/// The current monotonic time: for everything that waits.
pub fn monotonic() -> Monotonic {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let overridden = OVERRIDE.with_borrow_mut(|slot| slot.as_mut().map(|system| system.monotonic()));
    overridden.unwrap_or_else(|| Monotonic(0).plus(START.elapsed()))
}

/// The current wall time: for what is written to objects, and for certificates and tokens.
pub fn now() -> Time {
    let overridden = OVERRIDE.with_borrow_mut(|slot| slot.as_mut().map(|system| system.now()));
    overridden.unwrap_or_else(|| Time(jiff::Timestamp::now().as_millisecond()))
}

/// Fills `bytes` with random data.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), RandomError> {
    let overridden = OVERRIDE.with_borrow_mut(|slot| slot.as_mut().map(|system| system.fill_random(bytes)));
    match overridden {
        Some(()) => Ok(()),
        None => getrandom::fill(bytes),
    }
}

/// Ends the override of this thread's clock and randomness when it is dropped.
#[must_use]
pub struct OverrideGuard(PhantomData<*const ()>);

impl Drop for OverrideGuard {
    fn drop(&mut self) {
        OVERRIDE.set(None);
    }
}

/// Overrides the system's clock and randomness for this thread.
pub fn override_system(system: impl SystemOverride + 'static) -> OverrideGuard {
    OVERRIDE.set(Some(Box::new(system)));
    OverrideGuard(PhantomData)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl SystemOverride for Fixed {
        fn now(&mut self) -> Time {
            Time(7)
        }

        fn monotonic(&mut self) -> Monotonic {
            Monotonic(7)
        }

        fn fill_random(&mut self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    #[test]
    fn override_applies_to_its_thread_until_dropped() {
        let read = || {
            let mut bytes = [0; 16];
            fill_random(&mut bytes).unwrap();
            (now(), bytes)
        };
        let guard = override_system(Fixed);
        assert_eq!(read(), (Time(7), [7; 16]));
        let on_other_thread = std::thread::spawn(read).join().unwrap();
        drop(guard);
        let after_drop = read();
        for (time, bytes) in [on_other_thread, after_drop] {
            assert!(time > Time(7) && bytes != [7; 16]);
        }
    }
}
