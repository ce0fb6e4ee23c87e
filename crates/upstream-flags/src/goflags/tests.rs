//! Command lines that Go programs accept and refuse.

use super::*;

const ADDRESS: Flag =
    Flag { name: "csi-address", kind: ValueKind::Text, default: "", support: Support::Same("") };
const V: Flag = Flag { name: "v", kind: ValueKind::Number, default: "0", support: Support::Same("") };
const PROFILE: Flag = Flag {
    name: "enable-pprof",
    kind: ValueKind::Bool,
    default: "false",
    support: Support::Ignored("no Go"),
};
const TIMEOUT: Flag =
    Flag { name: "timeout", kind: ValueKind::Duration, default: "1s", support: Support::Same("") };

const QPS: Flag =
    Flag { name: "kube-api-qps", kind: ValueKind::Decimal, default: "5", support: Support::Same("") };
const THREADS: Flag =
    Flag { name: "worker-threads", kind: ValueKind::Count, default: "10", support: Support::Same("") };
const GATES: Flag =
    Flag { name: "feature-gates", kind: ValueKind::List, default: "", support: Support::Same("") };
const CAPACITY: Flag = Flag {
    name: "enable-capacity",
    kind: ValueKind::BoolOr(&["central"]),
    default: "",
    support: Support::Same(""),
};

fn parse_line(line: &str) -> Result<ParsedFlags, FlagError> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    parse(
        &[&ADDRESS, &V, &PROFILE, &TIMEOUT, &QPS, &THREADS, &GATES, &CAPACITY],
        ParseUntil::FirstPositional,
        &args,
    )
}

#[test]
fn all_of_gos_flag_forms_are_accepted() {
    for line in ["-v=5", "--v=5", "-v 5", "--v 5", "--v=1 -v=5"] {
        assert_eq!(parse_line(line).unwrap().number("v"), Some(5), "{line}");
    }
    let all = parse_line("--csi-address=/a=b --enable-pprof -timeout=2s").unwrap();
    assert_eq!(all.text("csi-address"), Some("/a=b"));
    assert!(all.is_set("enable-pprof"));
    assert_eq!(all.warnings, ["flag -enable-pprof is ignored: no Go"]);
    assert_eq!(all.timeout("timeout", Duration::ZERO), Ok(Duration::from_secs(2)));
    assert!(!parse_line("--enable-pprof=false").unwrap().is_set("enable-pprof"));
    assert_eq!(parse_line("--csi-address=").unwrap().text("csi-address"), None);
    assert!(parse_line("-h").unwrap().help && parse_line("--help").unwrap().help);
}

#[test]
fn lists_are_concatenated_and_booleans_accept_extra_values() {
    let items = |line| parse_line(line).unwrap().items("feature-gates").collect::<Vec<_>>().join(" ");
    assert_eq!(items("--feature-gates=A=true,B=false"), "A=true B=false");
    assert_eq!(items("--feature-gates=A=true --feature-gates B=false,"), "A=true B=false");
    assert_eq!(items("--feature-gates= --feature-gates=B=true"), "B=true");
    assert_eq!(items(""), "");
    for (line, set) in [
        ("", true),
        ("--enable-capacity=false", false),
        ("--enable-capacity", true),
        ("--enable-capacity=central", true),
    ] {
        assert_eq!(parse_line(line).unwrap().is_set_or("enable-capacity", true), set, "{line}");
    }
    assert_eq!(parse_line("--kube-api-qps=0.5").unwrap().decimal("kube-api-qps"), Some(0.5));
    assert_eq!(parse_line("--worker-threads=5").unwrap().number("worker-threads"), Some(5));
}

#[test]
fn positional_arguments_between_flags_are_ignored_with_a_warning() {
    let args = ["--enable-pprof", "true", "-v=5", "--", "x"].map(str::to_owned);
    let between = parse(&[&V, &PROFILE], ParseUntil::End, &args).unwrap();
    assert_eq!(between.number("v"), Some(5));
    assert!(
        between.warnings[1].contains("positional argument \"true\" is ignored"),
        "{:?}",
        between.warnings
    );
    assert!(between.warnings[2].contains("[\"x\"]"), "{:?}", between.warnings);
}

#[test]
fn first_positional_argument_ends_the_flags() {
    let rest = parse_line("-v=5 --enable-pprof true --nonsense").unwrap();
    assert_eq!(rest.number("v"), Some(5));
    assert!(rest.warnings[1].contains(r#"["true", "--nonsense"]"#), "{:?}", rest.warnings);
    assert_eq!(parse_line("-- --nonsense").unwrap().warnings.len(), 1);
    assert_eq!(parse_line("--").unwrap(), ParsedFlags::default());
}

#[test]
fn unknown_flags_and_invalid_values_are_refused() {
    for (line, expected) in [
        ("--nonsense", "--nonsense"),
        ("-vv", "-vv"),
        ("--v", "-v needs a value"),
        ("--v=high", "\"high\" is not a number"),
        ("--enable-pprof=yes", "\"yes\" is not a boolean"),
        ("--timeout=5", "\"5\" is not a duration"),
        ("--worker-threads=-1", "\"-1\" is not a non-negative number"),
        ("--kube-api-qps=inf", "\"inf\" is not a decimal number"),
        ("--enable-capacity=local", "\"local\" is not a boolean"),
    ] {
        let FlagError(error) = parse_line(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(parse_line("--timeout=0").unwrap().timeout("timeout", Duration::ZERO).is_err());
}

#[test]
fn durations_in_gos_format_are_parsed_or_refused() {
    for (text, millis) in [
        ("0", 0),
        ("0s", 0),
        ("1s", 1000),
        ("1.5s", 1500),
        ("500ms", 500),
        ("1m30s", 90_000),
        ("1h0m0.5s", 3_600_500),
        (".5s", 500),
        ("+1s", 1000),
        ("-1s", 0),
        // The longest whole number of hours in Go.
        ("2562047h", 9_223_369_200_000),
    ] {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
    }
    for text in [
        "",
        "5",
        "s",
        "1x",
        "1s5",
        "1..5s",
        "-",
        "1e400h",
        "99999999999999999999999h",
        "2562048h",
        "-2562048h",
    ] {
        assert_eq!(parse_duration(text), None, "{text:?}");
    }
}
