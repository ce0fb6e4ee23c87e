//! Volume sizes: whole GiB, rounded up and reported as they are.
//!
//! The existing driver rounds down and reports the requested size, so its own retry does not recognize the volume.
//! Here a size is never less than required and never more than the limit.

use wharf_driver::backend::SizeRange;

/// The API's unit.
pub(crate) const GIB: u64 = 1 << 30;
/// The size of a volume if the request does not specify one.
const DEFAULT_GIB: u64 = 16;
/// The API's maximum.
const MAXIMUM_GIB: u64 = 16 * 1024;

/// No volume size fits the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error(
        "volume sizes are whole GiB, and none is between {required} and {limit} bytes; raise the limit to {needed}"
    )]
    Limit { required: u64, limit: u64, needed: u64 },
    #[error("{required} bytes exceed DigitalOcean's maximum volume size of 16 TiB")]
    TooLarge { required: u64 },
}

/// GiB in bytes.
pub(crate) fn bytes(gib: u64) -> u64 {
    gib.saturating_mul(GIB)
}

/// The size in bytes that the existing driver creates for a request of this many bytes.
pub(crate) fn rounded_down(bytes: u64) -> u64 {
    bytes / GIB * GIB
}

/// The size in GiB for this request; `at_least` is the size of the source or the current size, or 0.
pub(crate) fn choose(range: SizeRange, at_least: u64) -> Result<u64, SizeError> {
    let smallest = range.required.div_ceil(GIB).max(at_least).max(1);
    let largest = range.limit.map_or(MAXIMUM_GIB, |limit| (limit / GIB).min(MAXIMUM_GIB));
    let wanted = if range.required == 0 && at_least == 0 { DEFAULT_GIB } else { smallest };
    match range.limit {
        _ if smallest > MAXIMUM_GIB => Err(SizeError::TooLarge { required: range.required }),
        Some(limit) if smallest > largest => {
            Err(SizeError::Limit { required: range.required, limit, needed: bytes(smallest) })
        }
        _ => Ok(wanted.min(largest)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 40;

    #[test]
    fn size_is_rounded_up_within_the_limit() {
        for (required, limit, at_least, chosen) in [
            (0, None, 0, Some(16)),
            (1, None, 0, Some(1)),
            (GIB, None, 0, Some(1)),
            // The existing driver creates 1 GiB.
            (3 * GIB / 2, None, 0, Some(2)),
            // The existing driver creates 0 GiB.
            (500 * MIB, Some(GIB), 0, Some(1)),
            (500 * MIB, Some(700 * MIB), 0, None),
            (3 * GIB / 2, Some(2 * GIB), 0, Some(2)),
            (3 * GIB / 2, Some(2 * GIB - 1), 0, None),
            (0, Some(GIB - 1), 0, None),
            (0, Some(4 * GIB), 0, Some(4)),
            (0, Some(20 * TIB), 0, Some(16)),
            (16 * TIB, None, 0, Some(16384)),
            (16 * TIB + 1, None, 0, None),
            (u64::MAX, None, 0, None),
            (0, None, 5, Some(5)),
            (3 * GIB, None, 5, Some(5)),
            (7 * GIB, None, 5, Some(7)),
            (3 * GIB, Some(4 * GIB), 5, None),
        ] {
            let size = choose(SizeRange { required, limit }, at_least);
            assert_eq!(size.clone().ok(), chosen, "{required} {limit:?} {at_least}: {size:?}");
        }
    }

    proptest! {
        #[test]
        fn chosen_size_fits_the_request(
            required in 0..40 * TIB,
            more in proptest::option::of(0..2 * GIB),
            at_least in 0..20_000_u64,
        ) {
            let range = SizeRange { required, limit: more.map(|more| required + more) };
            if let Ok(gib) = choose(range, at_least) {
                prop_assert!(range.fits(bytes(gib)) && gib >= at_least && (1..=MAXIMUM_GIB).contains(&gib));
            }
        }
    }
}
