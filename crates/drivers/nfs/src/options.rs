//! Mount options: validates the text of users, and adds those of typed parameters.
//!
//! [`combine`] is the entry point. Its result names what a user wants; how the kernel gets it (`vers=` of each attempt,
//! `addr=`, the options of the controller's own mount) is decided when the export is mounted.

use crate::parameters::Transport;

/// Why options are refused. Values are not quoted: they can be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Set by the driver, or dangerous.
    #[error("mount option {0} is not allowed")]
    NotAllowed(String),
    /// Two options, or an option and a parameter, contradict each other.
    #[error("mount option {0} contradicts {1}")]
    Conflict(String, String),
    /// A value that the kernel does not accept.
    #[error("mount option {name} has a value that is not allowed: use {expected}")]
    Value {
        /// The option's name.
        name: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// Control characters or quotes that do not match.
    #[error("mount options contain a control character, or a quote without its end")]
    Text,
    /// Quotes around something else than an SELinux context.
    #[error(
        "mount option {0} has quotes: only SELinux contexts with categories, such as \"u:r:t:s0:c1,c2\", need them"
    )]
    Quotes(String),
}

/// Options of `mount.nfs` that the kernel does not know.
const STRIPPED: [&str; 5] = ["bg", "fg", "retry", "_netdev", "defaults"];

/// Options that the driver sets, or that would change what is mounted where.
const REFUSED: [&str; 16] = [
    "addr",
    "clientaddr",
    "mountaddr",
    "remount",
    "bind",
    "rbind",
    "move",
    "shared",
    "private",
    "slave",
    "unbindable",
    "rshared",
    "rprivate",
    "rslave",
    "loop",
    "source",
];

/// Options whose values can have commas.
const CONTEXTS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

/// Options of which at most one may be given.
const EXCLUSIVE: [&[&str]; 4] =
    [&["hard", "soft", "softerr"], &["lock", "nolock"], &["ac", "noac"], &["sharecache", "nosharecache"]];

/// Validates mount options and adds those of parameters. Each text can have several options, separated by commas.
pub fn combine<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    transport: &Transport,
) -> Result<Vec<String>, OptionError> {
    let mut versions: Option<(String, Vec<&'static str>)> = None;
    let mut options: Vec<String> = Vec::new();
    for text in texts {
        for option in split(text)? {
            let (name, value) = parts(&option);
            if !is_quoted_well(name, value) {
                return Err(OptionError::Quotes(name.trim_matches('"').to_owned()));
            }
            if STRIPPED.contains(&name) {
                continue;
            }
            if REFUSED.contains(&name) {
                return Err(OptionError::NotAllowed(name.to_owned()));
            }
            if let Some(named) = versions_of(name, value)? {
                restrict(&mut versions, name, named)?;
                continue;
            }
            check_value(name, value)?;
            if let Some(other) = options.iter().find(|other| conflicts(other, name, value)) {
                return Err(OptionError::Conflict(
                    name.to_owned(),
                    format!("mount option {}", parts(other).0),
                ));
            }
            if !options.contains(&option) {
                options.push(option);
            }
        }
    }
    if let Some(version) = &transport.version {
        let named = versions_of("vers", Some(version))?.unwrap_or_default();
        restrict(&mut versions, "vers", named)
            .map_err(|_| OptionError::Conflict("vers".into(), "parameter nfsVersion".into()))?;
    }
    for (name, parameter, value) in transport.options() {
        check_value(name, Some(&value))?;
        if let Some(other) = options.iter().find(|other| parts(other).0 == name) {
            if parts(other).1 != Some(&value) {
                return Err(OptionError::Conflict(name.into(), format!("parameter {parameter}")));
            }
            continue;
        }
        options.push(format!("{name}={value}"));
    }
    if let Some((_, versions)) = versions {
        // Of several, the kernel's name of all: `vers=4`.
        options.insert(0, format!("vers={}", if let [one] = versions[..] { one } else { "4" }));
    }
    Ok(options)
}

/// The name and the value of an option.
fn parts(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

/// Splits at commas outside of double quotes, which SELinux contexts need.
fn split(text: &str) -> Result<Vec<String>, OptionError> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match c {
            c if c.is_control() => return Err(OptionError::Text),
            ',' if !quoted => parts.push(String::new()),
            c => {
                quoted ^= c == '"';
                if let Some(part) = parts.last_mut() {
                    part.push(c);
                }
            }
        }
    }
    if quoted {
        return Err(OptionError::Text);
    }
    Ok(parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
}

/// Whether quotes, if there are any, are around an SELinux context. A kernel without SELinux splits options at all commas, so
/// what follows a comma must not be an option: only categories (`c1`, `c1.c5`) are allowed there.
fn is_quoted_well(name: &str, value: Option<&str>) -> bool {
    let value = value.unwrap_or_default();
    if !name.contains('"') && !value.contains('"') {
        return true;
    }
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let is_category = |part: &str| {
        let number = |end: &str| {
            end.strip_prefix('c')
                .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        };
        part.split('.').all(number)
    };
    CONTEXTS.contains(&name)
        && inner.is_some_and(|inner| !inner.contains(['"', '=']) && inner.split(',').skip(1).all(is_category))
}

/// The versions that an option allows; `None` if the option is not about versions.
fn versions_of(name: &str, value: Option<&str>) -> Result<Option<Vec<&'static str>>, OptionError> {
    let text = match (name, value) {
        ("vers" | "nfsvers", value) => value.unwrap_or_default(),
        ("v3" | "v4" | "v4.0" | "v4.1" | "v4.2", None) => &name[1..],
        ("minorversion", Some("0")) => "4.0",
        ("minorversion", Some("1")) => "4.1",
        ("minorversion", Some("2")) => "4.2",
        ("minorversion", _) => "",
        _ => return Ok(None),
    };
    let versions = match text {
        "3" => vec!["3"],
        "4" => vec!["4.2", "4.1", "4.0"],
        "4.0" => vec!["4.0"],
        "4.1" => vec!["4.1"],
        "4.2" => vec!["4.2"],
        _ => {
            let expected = "3, 4, 4.0, 4.1 or 4.2";
            return Err(OptionError::Value { name: name.to_owned(), expected });
        }
    };
    Ok(Some(versions))
}

/// Restricts the versions to those that both options allow.
fn restrict(
    versions: &mut Option<(String, Vec<&'static str>)>,
    name: &str,
    named: Vec<&'static str>,
) -> Result<(), OptionError> {
    let Some((earlier, allowed)) = versions else {
        *versions = Some((name.to_owned(), named));
        return Ok(());
    };
    allowed.retain(|version| named.contains(version));
    match allowed.is_empty() {
        true => Err(OptionError::Conflict(name.to_owned(), format!("mount option {earlier}"))),
        false => Ok(()),
    }
}

fn check_value(name: &str, value: Option<&str>) -> Result<(), OptionError> {
    let bad = |expected| Err(OptionError::Value { name: name.to_owned(), expected });
    let number = || value.and_then(|value| value.parse::<u32>().ok());
    match name {
        "nconnect" if !number().is_some_and(|count| (1..=16).contains(&count)) => bad("1 to 16"),
        "port" if number().is_none_or(|port| port > 65535) => bad("0 to 65535"),
        "timeo" | "retrans" | "rsize" | "wsize" if number().is_none() => bad("a number"),
        "sec" if !value.is_some_and(|value| value.split(':').all(is_flavor)) => {
            bad("sys, krb5, krb5i or krb5p")
        }
        "xprtsec" if !matches!(value, Some("none" | "tls" | "mtls")) => bad("none, tls or mtls"),
        "proto" if !matches!(value, Some("tcp" | "tcp6" | "udp" | "udp6" | "rdma" | "rdma6")) => {
            bad("tcp, tcp6, udp, udp6, rdma or rdma6")
        }
        _ => Ok(()),
    }
}

/// Whether a value of `sec=` is known.
pub(crate) fn is_flavor(flavor: &str) -> bool {
    matches!(flavor, "sys" | "none" | "krb5" | "krb5i" | "krb5p")
}

/// Whether an earlier option contradicts this one: another value of the same name, or an alternative.
fn conflicts(other: &str, name: &str, value: Option<&str>) -> bool {
    let (other_name, other_value) = parts(other);
    let alternatives = EXCLUSIVE
        .iter()
        .any(|group| group.contains(&other_name) && group.contains(&name) && other_name != name);
    alternatives || (other_name == name && other_value != value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Vec<String>, OptionError> {
        combine(texts.iter().copied(), &Transport::default())
    }

    #[test]
    fn options_are_kept_in_order_with_one_version() {
        for (texts, expected) in [
            (&[][..], &[][..]),
            (&["nfsvers=4.1", "hard"], &["vers=4.1", "hard"]),
            (&["vers=4"], &["vers=4"]),
            (&["vers=4,minorversion=1"], &["vers=4.1"]),
            (&["v3", "nolock,noatime"], &["vers=3", "nolock", "noatime"]),
            (&["vers=4.2", "nfsvers=4"], &["vers=4.2"]),
            (&["bg,retry=10,fg,hard,_netdev,defaults"], &["hard"]),
            (&[" hard , ,", "hard"], &["hard"]),
            (&["context=\"a:b:c1,c2\",ro"], &["context=\"a:b:c1,c2\"", "ro"]),
            (&["context=\"u:r:t:s0:c1.c5,c9\""], &["context=\"u:r:t:s0:c1.c5,c9\""]),
            (&["rootcontext=\"u:r:t:s0\""], &["rootcontext=\"u:r:t:s0\""]),
        ] {
            assert_eq!(parse(texts).unwrap(), expected, "{texts:?}");
        }
    }

    #[test]
    fn contradictions_and_dangerous_options_are_refused() {
        for texts in [
            &["vers=3,vers=4.1"][..],
            &["v3", "minorversion=1"],
            &["minorversion=3"],
            &["hard", "soft"],
            &["soft,softerr"],
            &["lock,nolock"],
            &["timeo=10,timeo=20"],
            &["nconnect=0"],
            &["nconnect=17"],
            &["nconnect"],
            &["sec=krb6"],
            &["xprtsec=ssl"],
            &["vers=2"],
            &["vers"],
            &["port=70000"],
            &["addr=10.0.0.1"],
            &["clientaddr=10.0.0.1"],
            &["remount"],
            &["bind"],
            &["hard\nbind"],
            &["context=\"a"],
            &["proto=sctp"],
        ] {
            assert!(parse(texts).is_err(), "{texts:?}");
        }
        assert!(!parse(&["sec=hunter2"]).unwrap_err().to_string().contains("hunter2"));
    }

    /// A kernel without SELinux, and the driver when it mounts, split at commas within quotes, too.
    #[test]
    fn quotes_do_not_hide_options() {
        for text in [
            "context=\"a,mountaddr=10.0.0.1,b\"",
            "context=\"a,clientaddr=10.0.0.1,b\"",
            "context=\"a,suid,b\"",
            "context=\"a,remount\"",
            "context=\"a,c1,rw\"",
            "context=\"a=b\"",
            "context=\"a\"b\"c\"",
            "context=a\",addr=10.0.0.1,\"",
            "sec=\"sys\"",
            "\"addr=10.0.0.1\"",
            "\"addr\"=10.0.0.1",
            "x=\"a,addr=10.0.0.1\"",
        ] {
            let error = parse(&[text]).unwrap_err();
            assert!(!error.to_string().contains("10.0.0.1"), "{error}");
        }
    }

    #[test]
    fn parameters_add_options_and_contradictions_are_refused() {
        let transport = Transport {
            version: Some("4.2".into()),
            nconnect: Some(4),
            tls: Some("mtls".into()),
            security: Some("krb5p".into()),
        };
        let options = combine(["vers=4", "nconnect=4"], &transport).unwrap();
        assert_eq!(options, ["vers=4.2", "nconnect=4", "xprtsec=mtls", "sec=krb5p"]);
        for text in ["vers=3", "nconnect=2", "xprtsec=none", "sec=sys"] {
            assert!(combine([text], &transport).is_err(), "{text}");
        }
    }
}
