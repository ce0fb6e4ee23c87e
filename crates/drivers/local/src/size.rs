//! Volume sizes. All sizes are multiples of 4 KiB, the block size common to loop devices and all supported file
//! systems, so `blockdev` reports the requested size whenever the request allows it.

use wharf_driver::backend::SizeRange;

/// Every size is a multiple of this.
pub(crate) const UNIT: u64 = 4096;

/// The size of a volume if the request does not specify one.
pub(crate) const DEFAULT: u64 = 1 << 30;

/// The largest file offset is an i64.
pub(crate) const MAXIMUM: u64 = i64::MAX as u64 / UNIT * UNIT;

/// No size fits the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("{required} bytes exceed the maximum volume size of {MAXIMUM}")]
    TooLarge { required: u64 },
    #[error(
        "the smallest possible size is {smallest} bytes, which exceeds the limit of {limit}: raise the limit"
    )]
    AboveLimit { smallest: u64, limit: u64 },
}

/// The size of a new volume: the required size, at least `minimum` (the file system's), in whole units.
pub(crate) fn of_new(range: SizeRange, minimum: u64) -> Result<u64, SizeError> {
    let wanted = match (range.required, range.limit) {
        (0, Some(limit)) => DEFAULT.min(limit / UNIT * UNIT),
        (0, None) => DEFAULT,
        (required, _) => required,
    };
    fit(wanted.max(minimum), range)
}

/// The size of a volume created from a source: never less than the source's, whatever is required, and if more, at least
/// `grown`, the smallest size that the source's file system can grow to.
pub(crate) fn of_copy(
    range: SizeRange,
    minimum: u64,
    source_size: u64,
    grown: u64,
) -> Result<u64, SizeError> {
    fit(grow(range.required.max(minimum), source_size, grown), range)
}

/// The size after an expansion of a volume of `current` bytes: never smaller, and `grown` as above.
pub(crate) fn of_expansion(range: SizeRange, current: u64, grown: u64) -> Result<u64, SizeError> {
    fit(grow(range.required, current, grown), range)
}

fn grow(wanted: u64, current: u64, grown: u64) -> u64 {
    if wanted > current { wanted.max(grown) } else { current }
}

/// The size that a request names, if the volume is larger.
pub(crate) fn rounded_up_from(range: SizeRange, size: u64) -> Option<u64> {
    Some(range.required).filter(|required| (1..size).contains(required))
}

/// Whether an existing volume satisfies a request.
pub(crate) fn satisfies(size: u64, range: SizeRange) -> bool {
    size >= range.required && range.limit.is_none_or(|limit| size <= limit)
}

fn fit(wanted: u64, range: SizeRange) -> Result<u64, SizeError> {
    if wanted > MAXIMUM {
        return Err(SizeError::TooLarge { required: wanted });
    }
    // Cannot overflow: `wanted` is at most MAXIMUM, which is itself a multiple of UNIT.
    let smallest = wanted.max(UNIT).next_multiple_of(UNIT);
    match range.limit {
        Some(limit) if limit < smallest => Err(SizeError::AboveLimit { smallest, limit }),
        _ => Ok(smallest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn range(required: u64, limit: impl Into<Option<u64>>) -> SizeRange {
        SizeRange { required, limit: limit.into() }
    }

    #[test]
    fn new_volume_size_respects_range_and_minimum() {
        use SizeError::*;
        let cases = [
            (range(0, None), 0, Ok(GIB)),
            (range(0, 5 * MIB), 0, Ok(5 * MIB)),
            (range(0, 5 * MIB + 1), 0, Ok(5 * MIB)),
            (range(0, 5 * GIB), 0, Ok(GIB)),
            (range(0, 1), 0, Err(AboveLimit { smallest: UNIT, limit: 1 })),
            (range(0, 100 * MIB), 300 * MIB, Err(AboveLimit { smallest: 300 * MIB, limit: 100 * MIB })),
            (range(1, None), 0, Ok(UNIT)),
            (range(UNIT, UNIT), 0, Ok(UNIT)),
            (range(UNIT + 1, None), 0, Ok(2 * UNIT)),
            (range(5000, 5000), 0, Err(AboveLimit { smallest: 2 * UNIT, limit: 5000 })),
            (range(10 * GIB, 10 * GIB), 300 * MIB, Ok(10 * GIB)),
            (range(MIB, None), 300 * MIB, Ok(300 * MIB)),
            (range(MIB, 300 * MIB), 300 * MIB, Ok(300 * MIB)),
            (range(MIB, 299 * MIB), 300 * MIB, Err(AboveLimit { smallest: 300 * MIB, limit: 299 * MIB })),
            (range(MAXIMUM, None), 0, Ok(MAXIMUM)),
            (range(MAXIMUM + 1, None), 0, Err(TooLarge { required: MAXIMUM + 1 })),
            (range(u64::MAX, None), 0, Err(TooLarge { required: u64::MAX })),
        ];
        for (range, minimum, expected) in cases {
            assert_eq!(of_new(range, minimum), expected, "{range:?} {minimum}");
        }
    }

    #[test]
    fn copy_is_at_least_as_large_as_its_source() {
        use SizeError::*;
        let cases = [
            (range(0, None), 0, 5 * MIB, Ok(5 * MIB)),
            (range(8 * MIB, None), 0, 5 * MIB, Ok(8 * MIB)),
            (range(0, 4 * MIB), 0, 5 * MIB, Err(AboveLimit { smallest: 5 * MIB, limit: 4 * MIB })),
            (range(4 * MIB, None), 0, 5 * MIB, Ok(5 * MIB)),
            (
                range(4 * MIB, 5 * MIB - 1),
                0,
                5 * MIB,
                Err(AboveLimit { smallest: 5 * MIB, limit: 5 * MIB - 1 }),
            ),
            (range(0, None), 300 * MIB, 5 * MIB, Ok(300 * MIB)),
        ];
        for (range, minimum, source, expected) in cases {
            assert_eq!(of_copy(range, minimum, source, 0), expected, "{range:?} {minimum} {source}");
        }
        assert_eq!(
            of_copy(range(0, None), 0, 5 * MIB, 9 * MIB),
            Ok(5 * MIB),
            "the source's size needs no growth"
        );
        assert_eq!(of_copy(range(6 * MIB, None), 0, 5 * MIB, 9 * MIB), Ok(9 * MIB));
        let limited = of_copy(range(6 * MIB, 8 * MIB), 0, 5 * MIB, 9 * MIB);
        assert_eq!(limited, Err(AboveLimit { smallest: 9 * MIB, limit: 8 * MIB }));
    }

    #[test]
    fn expansion_never_shrinks() {
        assert_eq!(of_expansion(range(2 * GIB, None), GIB, 0), Ok(2 * GIB));
        assert_eq!(of_expansion(range(MIB, None), GIB, 0), Ok(GIB));
        assert!(of_expansion(range(MIB, 2 * MIB), GIB, 0).is_err());
        assert_eq!(of_expansion(range(2 * MIB, None), MIB, 5 * MIB), Ok(5 * MIB));
        assert_eq!(of_expansion(range(MIB, None), MIB, 5 * MIB), Ok(MIB));
    }

    proptest! {
        #[test]
        fn chosen_size_satisfies_the_request(
            required: u64, limit in proptest::option::of(any::<u64>()), minimum in 0..2 * GIB, source in 0..2 * GIB
        ) {
            let range = range(required, limit);
            let source = source / UNIT * UNIT;
            for size in [of_new(range, minimum), of_copy(range, minimum, source, 0)].into_iter().flatten() {
                prop_assert!(satisfies(size, range));
                prop_assert!(size % UNIT == 0 && size >= UNIT && size >= minimum && size <= MAXIMUM);
            }
        }
    }
}
