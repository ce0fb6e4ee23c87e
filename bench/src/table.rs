//! Tables of bench/RESULTS.md: figures of several sides, the goal, and whether it is met.

/// The goal of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At most this value.
    AtMost(f64),
    /// At least this many times upstream's value.
    Times(f64),
    /// At most upstream's value divided by this.
    Part(f64),
    /// No goal.
    None,
}

impl Goal {
    /// The goal and whether it is met.
    pub fn verdict(self, upstream: Option<f64>, ours: f64) -> String {
        let met = |is: bool| if is { "met" } else { "missed" };
        match (self, upstream) {
            (Self::AtMost(most), _) => format!("at most {most} ({})", met(ours <= most)),
            (Self::Times(times), Some(theirs)) => {
                format!("{times:.0} times upstream: {:.1} ({})", ours / theirs, met(ours >= theirs * times))
            }
            (Self::Part(part), Some(theirs)) => {
                format!("1/{part:.0} of upstream: 1/{:.1} ({})", theirs / ours, met(ours * part <= theirs))
            }
            (Self::None | Self::Times(_) | Self::Part(_), _) => "-".to_owned(),
        }
    }
}

/// Formats a value with three significant digits.
pub fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// The median.
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
