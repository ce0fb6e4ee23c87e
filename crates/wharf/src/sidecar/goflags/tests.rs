//! What Go's programs take, and what they refuse.

use super::*;

const ADDRESS: Flag =
    Flag { name: "csi-address", takes: Takes::Text, default: "", becomes: Becomes::Same("") };
const V: Flag = Flag { name: "v", takes: Takes::Number, default: "0", becomes: Becomes::Same("") };
const PROFILE: Flag =
    Flag { name: "enable-pprof", takes: Takes::Bool, default: "false", becomes: Becomes::Ignored("no Go") };
const TIMEOUT: Flag =
    Flag { name: "timeout", takes: Takes::Duration, default: "1s", becomes: Becomes::Same("") };

const QPS: Flag =
    Flag { name: "kube-api-qps", takes: Takes::Decimal, default: "5", becomes: Becomes::Same("") };
const THREADS: Flag =
    Flag { name: "worker-threads", takes: Takes::Count, default: "10", becomes: Becomes::Same("") };
const GATES: Flag =
    Flag { name: "feature-gates", takes: Takes::List, default: "", becomes: Becomes::Same("") };
const CAPACITY: Flag = Flag {
    name: "enable-capacity",
    takes: Takes::BoolOr(&["central"]),
    default: "",
    becomes: Becomes::Same(""),
};

fn given(line: &str) -> Result<Given, FlagError> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    parse(&[&ADDRESS, &V, &PROFILE, &TIMEOUT, &QPS, &THREADS, &GATES, &CAPACITY], Ends::AtFirstWord, &words)
}

#[test]
fn forms_that_go_takes() {
    for line in ["-v=5", "--v=5", "-v 5", "--v 5", "--v=1 -v=5"] {
        assert_eq!(given(line).unwrap().number("v"), Some(5), "{line}");
    }
    let all = given("--csi-address=/a=b --enable-pprof -timeout=2s").unwrap();
    assert_eq!(all.text("csi-address"), Some("/a=b"));
    assert!(all.is_set("enable-pprof"));
    assert_eq!(all.warnings, ["flag -enable-pprof is ignored: no Go"]);
    assert_eq!(all.timeout("timeout", Duration::ZERO), Ok(Duration::from_secs(2)));
    assert!(!given("--enable-pprof=false").unwrap().is_set("enable-pprof"));
    assert_eq!(given("--csi-address=").unwrap().text("csi-address"), None);
    assert!(given("-h").unwrap().help && given("--help").unwrap().help);
}

#[test]
fn lists_grow_and_words_can_be_a_yes() {
    let items = |line| given(line).unwrap().items("feature-gates").collect::<Vec<_>>().join(" ");
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
        assert_eq!(given(line).unwrap().is_set_or("enable-capacity", true), set, "{line}");
    }
    assert_eq!(given("--kube-api-qps=0.5").unwrap().decimal("kube-api-qps"), Some(0.5));
    assert_eq!(given("--worker-threads=5").unwrap().number("worker-threads"), Some(5));
}

#[test]
fn words_between_flags_where_they_may_stand() {
    let words = ["--enable-pprof", "true", "-v=5", "--", "x"].map(str::to_owned);
    let between = parse(&[&V, &PROFILE], Ends::Never, &words).unwrap();
    assert_eq!(between.number("v"), Some(5));
    assert!(between.warnings[1].contains("not a flag, ignored: \"true\""), "{:?}", between.warnings);
    assert!(between.warnings[2].contains("[\"x\"]"), "{:?}", between.warnings);
}

#[test]
fn the_first_word_that_is_no_flag_ends_them() {
    let rest = given("-v=5 --enable-pprof true --nonsense").unwrap();
    assert_eq!(rest.number("v"), Some(5));
    assert!(rest.warnings[1].contains(r#"["true", "--nonsense"]"#), "{:?}", rest.warnings);
    assert_eq!(given("-- --nonsense").unwrap().warnings.len(), 1);
    assert_eq!(given("--").unwrap(), Given::default());
}

#[test]
fn what_is_not_understood_is_refused() {
    for (line, said) in [
        ("--nonsense", "--nonsense"),
        ("-vv", "-vv"),
        ("--v", "-v needs a value"),
        ("--v=high", "\"high\" is not a number"),
        ("--enable-pprof=yes", "\"yes\" is not a boolean"),
        ("--timeout=5", "\"5\" is not a duration"),
        ("--worker-threads=-1", "\"-1\" is not a number of at least 0"),
        ("--kube-api-qps=inf", "\"inf\" is not a decimal number"),
        ("--enable-capacity=local", "\"local\" is not a boolean"),
    ] {
        let FlagError(error) = given(line).unwrap_err();
        assert!(error.contains(said), "{line}: {error}");
    }
    assert!(given("--timeout=0").unwrap().timeout("timeout", Duration::ZERO).is_err());
}

#[test]
fn durations_as_go_writes_them() {
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
    ] {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "5", "s", "1x", "1s5", "1..5s", "-", "1e400h", "99999999999999999999999h"] {
        assert_eq!(parse_duration(text), None, "{text:?}");
    }
}
