//! The wall clock, as rules see it.

use wharf_model::Time;

/// This moment.
pub fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}
