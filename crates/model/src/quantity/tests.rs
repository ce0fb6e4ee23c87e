use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Quantity {
    text.parse().unwrap()
}

#[test]
fn values_and_canonical_forms() {
    for (text, bytes, printed) in [
        ("0", 0, "0"),
        ("0Gi", 0, "0"),
        ("1", 1, "1"),
        ("1024", 1024, "1024"),
        ("1000", 1000, "1k"),
        ("1Ki", 1024, "1Ki"),
        ("1023Ki", 1023 * 1024, "1023Ki"),
        ("1024Ki", 1 << 20, "1Mi"),
        ("10Gi", 10 << 30, "10Gi"),
        ("1.5Gi", 3 << 29, "1536Mi"),
        ("0.5Gi", 1 << 29, "512Mi"),
        ("1.1Ki", 1127, "1127"),
        (".5Ki", 512, "512"),
        ("5.Gi", 5 << 30, "5Gi"),
        ("0.1Gi", 107_374_183, "107374183"),
        ("1Ei", 1 << 60, "1Ei"),
        ("1G", 1_000_000_000, "1G"),
        ("1.5G", 1_500_000_000, "1500M"),
        ("500M", 500_000_000, "500M"),
        ("1e3", 1000, "1e3"),
        ("1E3", 1000, "1e3"),
        ("12e4", 120_000, "120e3"),
        ("1e-3", 1, "1e-3"),
        ("1e+3", 1000, "1e3"),
        ("100m", 1, "100m"),
        ("1500m", 2, "1500m"),
        ("1n", 1, "1n"),
        ("0.1n", 1, "1n"),
        ("1e-30", 1, "1e-9"),
        ("0.0001Ki", 1, "102400u"),
        ("+5", 5, "5"),
        ("-5Ki", -5120, "-5Ki"),
        ("-1.5", -2, "-1500m"),
        ("9223372036854775807", i64::MAX, "9223372036854775807"),
        ("8Ei", i64::MAX, "9223372036854775807"),
        ("99999Ei", i64::MAX, "9223372036854775807"),
        ("10E", i64::MAX, "10E"),
        ("-10E", i64::MIN, "-10E"),
    ] {
        let quantity = parse(text);
        assert_eq!(quantity.bytes(), bytes, "bytes of {text}");
        assert_eq!(quantity.to_string(), printed, "form of {text}");
    }
}

#[test]
fn invalid_text_is_rejected() {
    for text in [
        "", "Gi", ".", "-", "+", "1 Gi", " 1", "1gi", "1K", "1g", "1.2.3", "0x10", "1e", "1e+", "1eGi",
        "--1", "1Zi",
    ] {
        assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError { text: text.into() }), "{text:?}");
    }
}

#[test]
fn quantities_are_compared_by_value() {
    assert_eq!(parse("1Ki"), parse("1024"));
    assert_eq!(parse("1.5G"), parse("1500M"));
    assert_eq!(parse("1e3"), parse("1k"));
    assert!(parse("1G") < parse("1Gi"));
    assert!(parse("100m") < parse("1"));
    assert!(parse("1e400") > parse("1e20"));
    assert!(parse("-1") < Quantity::ZERO);
}

#[test]
fn quantities_are_decoded_from_json() {
    for (json, printed) in [
        ("\"3Gi\"", "3Gi"),
        ("5", "5"),
        ("-5", "-5"),
        ("1.5", "1500m"),
        ("18446744073709551615", "18446744073709551615"),
    ] {
        assert_eq!(serde_json::from_str::<Quantity>(json).unwrap().to_string(), printed);
    }
    assert!(serde_json::from_str::<Quantity>("\"much\"").is_err());
}

#[test]
fn printed_number_without_unit_is_parsed_as_decimal() {
    let binary = parse("4275222769369100.5850Ki");
    assert_eq!(binary.to_string(), "4377828115833959000");
    assert_eq!(parse(&binary.to_string()).to_string(), "4377828115833959k");
}

proptest! {
    #[test]
    fn bytes_round_trip(bytes: i64) {
        let quantity = Quantity::from_bytes(bytes);
        prop_assert_eq!(quantity.bytes(), bytes);
        prop_assert_eq!(parse(&quantity.to_string()), quantity);
    }

    #[test]
    fn canonical_form_has_the_same_value(whole in 0u64..=1 << 53, fraction in "[0-9]{0,12}", suffix in "(|n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]|e-[0-9])") {
        let quantity = parse(&format!("{whole}.{fraction}{suffix}"));
        let again = parse(&quantity.to_string());
        // The text may differ: a multiple of 1000 but not of 1024 is printed without a unit, and a number without a
        // unit is parsed as decimal.
        prop_assert_eq!(parse(&again.to_string()), again);
        prop_assert_eq!(again.bytes(), quantity.bytes());
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in "[-+]?[0-9.]{0,60}([a-zA-Z]{0,3}|[eE][-+]?[0-9]{0,12})") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.bytes(), quantity.to_string());
        }
    }

    #[test]
    fn fraction_is_rounded_up(whole in 0i64..1 << 40, nano in 1u32..1_000_000_000) {
        prop_assert_eq!(parse(&format!("{whole}.{nano:09}")).bytes(), whole + 1);
    }
}

/// A pod's CPU request is counted in thousandths and never rounded down.
#[test]
fn thousandths_are_rounded_up() {
    for (text, milli) in
        [("1", 1000), ("250m", 250), ("0.1", 100), ("1u", 1), ("0", 0), ("-1500u", -2), ("9E", i64::MAX)]
    {
        assert_eq!(text.parse::<Quantity>().unwrap().milli(), milli, "{text}");
    }
}
