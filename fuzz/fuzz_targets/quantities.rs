//! Quantities, such as `10Gi`, and the sizes in bytes that they mean.
//!
//! Promise: parsing never panics or overflows, and what is printed is parsed as the same value: `parse(print(x)) == x`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_model::Quantity;

fuzz_target!(|text: &str| {
    let Ok(quantity) = text.parse::<Quantity>() else { return };
    let printed = quantity.to_string();
    let parsed = printed.parse::<Quantity>().expect("what is printed is a quantity");
    assert_eq!(parsed.bytes(), quantity.bytes(), "{text:?} is printed as {printed:?}");
    // In powers of 1024, upstream prints fractions of a byte rounded up. A number without a unit, such as 2000 for
    // 1.953125Ki, is then parsed as one in powers of 1000, and printed as 2k.
    if !text.ends_with('i') {
        assert_eq!(parsed, quantity, "{text:?} is printed as {printed:?}");
        assert_eq!(parsed.to_string(), printed, "{text:?}");
    }
    let _ = (quantity.divided_by(parsed), quantity.divided_by(Quantity::from_bytes(1)));
});
