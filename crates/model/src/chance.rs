//! What no rule decides: the time on the wall, and chance. Whatever runs takes both from here, so that a simulation can put
//! its own in their place and be repeated to the byte.
//!
//! Promise: without a stand-in these are the system's own clock and randomness; a stand-in holds for its own thread, until
//! its guard is dropped.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::Time;

pub use getrandom::Error as NoChance;

/// Time and chance of a simulation.
pub trait StandIn {
    /// This moment.
    fn now(&mut self) -> Time;
    /// Fills it with what is to pass for chance.
    fn fill(&mut self, bytes: &mut [u8]);
}

thread_local! {
    static STANDS_IN: RefCell<Option<Box<dyn StandIn>>> = const { RefCell::new(None) };
}

/// This moment.
pub fn now() -> Time {
    let stood_in = STANDS_IN.with_borrow_mut(|stands_in| stands_in.as_mut().map(|other| other.now()));
    stood_in.unwrap_or_else(|| Time(jiff::Timestamp::now().as_millisecond()))
}

/// Fills it with randomness.
pub fn fill(bytes: &mut [u8]) -> Result<(), NoChance> {
    let stood_in = STANDS_IN.with_borrow_mut(|stands_in| stands_in.as_mut().map(|other| other.fill(bytes)));
    match stood_in {
        Some(()) => Ok(()),
        None => getrandom::fill(bytes),
    }
}

/// While it is there, somebody stands in for time and chance on this thread.
#[must_use]
pub struct Standing(PhantomData<*const ()>);

impl Drop for Standing {
    fn drop(&mut self) {
        STANDS_IN.set(None);
    }
}

/// Puts a simulation's time and chance in the place of the system's, for this thread.
pub fn stand_in(other: impl StandIn + 'static) -> Standing {
    STANDS_IN.set(Some(Box::new(other)));
    Standing(PhantomData)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Same;

    impl StandIn for Same {
        fn now(&mut self) -> Time {
            Time(7)
        }

        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    #[test]
    fn a_stand_in_is_for_its_thread_and_its_time() {
        let taken = || {
            let mut bytes = [0; 16];
            fill(&mut bytes).unwrap();
            (now(), bytes)
        };
        let standing = stand_in(Same);
        assert_eq!(taken(), (Time(7), [7; 16]));
        let elsewhere = std::thread::spawn(taken).join().unwrap();
        drop(standing);
        let afterwards = taken();
        for (time, bytes) in [elsewhere, afterwards] {
            assert!(time > Time(7) && bytes != [7; 16]);
        }
    }
}
