//! Ages, as kubectl prints them.

use serde_json::Value;
use wharf_model::Time;

use super::json;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Returns the time since an object was created, as kubectl prints it.
pub fn age(object: &Value, now: Time) -> String {
    since(object, "/metadata/creationTimestamp", now)
}

/// The time since the timestamp at a pointer; `<unknown>` if there is none.
pub(super) fn since(object: &Value, pointer: &str, now: Time) -> String {
    timestamp(object, pointer).map_or_else(|| "<unknown>".into(), |then| human_duration(now.0 - then.0))
}

/// Parses the timestamp at a pointer.
pub(super) fn timestamp(object: &Value, pointer: &str) -> Option<Time> {
    let text = json::text(object, pointer);
    text.parse::<jiff::Timestamp>().ok().map(|then| Time(then.as_millisecond()))
}

/// A duration with two or three significant digits (upstream's `duration.HumanDuration`). A time less than two seconds
/// in the future counts as now, because clocks differ.
pub(super) fn human_duration(milliseconds: i64) -> String {
    let two = |first: i64, unit: char, rest: i64, part: char| {
        if rest == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{rest}{part}") }
    };
    // Truncates towards zero, as Go's int() does: -1.9 seconds become -1.
    match milliseconds / 1000 {
        ..=-2 => "<invalid>".into(),
        -1 => "0s".into(),
        seconds @ 0..120 => format!("{seconds}s"),
        seconds if seconds < 10 * MINUTE => two(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        seconds if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 8 * HOUR => two(seconds / HOUR, 'h', seconds % HOUR / MINUTE, 'm'),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds if seconds < 8 * DAY => two(seconds / DAY, 'd', seconds % DAY / HOUR, 'h'),
        seconds if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        seconds if seconds < 8 * YEAR => two(seconds / YEAR, 'y', seconds % YEAR / DAY, 'd'),
        seconds => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_in_kubectl() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (601, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR + 61, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (3 * DAY + 2 * HOUR, "3d2h"),
            (8 * DAY + 2 * HOUR, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR + 3 * DAY, "2y3d"),
            (8 * YEAR + 3 * DAY, "8y"),
        ] {
            assert_eq!(human_duration(seconds * 1000), expected, "{seconds}");
        }
    }

    #[test]
    fn age_without_timestamp_is_unknown() {
        let object = serde_json::json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10.5Z"}});
        assert_eq!(age(&object, Time(15_500)), "5s");
        assert_eq!(age(&serde_json::json!({}), Time(0)), "<unknown>");
    }
}
