//! Validation of DNS settings and host aliases.

use std::net::IpAddr;

use serde_json::Value;

use crate::kinds::{json, meta, names};
use crate::status::Cause;

/// Limits of the C library's resolver.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_CHARACTERS: usize = 2048;

/// Validates a pod's DNS settings.
pub(super) fn dns(spec: &Value) -> Vec<Cause> {
    const AT: &str = "spec.dnsConfig";
    let config = spec.get("dnsConfig");
    let servers = json::list(spec, "/dnsConfig/nameservers");
    if json::text(spec, "/dnsPolicy") == "None" && servers.is_empty() {
        return vec![match config {
            None => Cause::required(AT, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(_) => Cause::required(
                &format!("{AT}.nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
        }];
    }
    let mut causes = Vec::new();
    if servers.len() > MAX_SERVERS {
        let detail = format!("must not have more than {MAX_SERVERS} nameservers");
        causes.push(Cause::invalid(&format!("{AT}.nameservers"), &servers.to_vec().into(), &detail));
    }
    for (index, server) in servers.iter().enumerate() {
        causes.extend(address(server, &format!("{AT}.nameservers[{index}]")));
    }
    let searches = json::list(spec, "/dnsConfig/searches");
    let too_much =
        |detail: String| Cause::invalid(&format!("{AT}.searches"), &searches.to_vec().into(), &detail);
    if searches.len() > MAX_SEARCHES {
        causes.push(too_much(format!("must not have more than {MAX_SEARCHES} search paths")));
    }
    let texts: Vec<&str> = searches.iter().filter_map(Value::as_str).collect();
    if texts.join(" ").len() > MAX_CHARACTERS {
        causes.push(too_much(format!(
            "must not have more than {MAX_CHARACTERS} characters (including spaces) in the search list"
        )));
    }
    for (index, search) in texts.into_iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        causes.extend(meta::invalid_causes(
            &format!("{AT}.searches[{index}]"),
            search,
            names::dns_search_path(search),
        ));
    }
    for (index, option) in json::list(spec, "/dnsConfig/options").iter().enumerate() {
        if json::text(option, "/name").is_empty() {
            causes.push(Cause::required(&format!("{AT}.options[{index}]"), "must not be empty"));
        }
    }
    causes
}

/// Validates a pod's host aliases.
pub(super) fn host_aliases(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, alias) in json::list(spec, "/hostAliases").iter().enumerate() {
        let at = format!("spec.hostAliases[{index}]");
        causes.extend(address(&json::text(alias, "/ip").into(), &format!("{at}.ip")));
        for (index, name) in json::list(alias, "/hostnames").iter().filter_map(Value::as_str).enumerate() {
            let field = format!("{at}.hostnames[{index}]");
            causes.extend(meta::invalid_causes(&field, name, names::subdomain(name, false)));
        }
    }
    causes
}

/// Validates an IP address. Like upstream here, it accepts leading zeros.
fn address(address: &Value, field: &str) -> Option<Cause> {
    let text = address.as_str().unwrap_or_default();
    let is_number = |part: &str| {
        let digits = part.trim_start_matches('0');
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (digits.is_empty() || digits.parse::<u8>().is_ok())
    };
    let parts: Vec<&str> = text.split('.').collect();
    let is_padded = parts.len() == 4 && parts.iter().all(|part| is_number(part));
    let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
    (!is_padded && text.parse::<IpAddr>().is_err()).then(|| Cause::invalid(field, address, detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::lines;

    #[test]
    fn dns_config_is_validated() {
        let errors = |policy: &str, config: Value| {
            let mut spec = json!({"dnsPolicy": policy, "dnsConfig": config});
            if config.is_null() {
                json::remove(&mut spec, "dnsConfig");
            }
            lines(dns(&spec))
        };
        let good = json!({
            "nameservers": ["10.0.0.1", "010.0.0.1", "::1"], "searches": [".", "a.b.", "_tcp.a"], "options": [{"name": "ndots"}],
        });
        assert!(errors("None", good).is_empty());
        assert!(errors("Default", Value::Null).is_empty());
        assert_eq!(
            errors("None", Value::Null),
            ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"]
        );
        assert_eq!(
            errors("None", json!({})),
            [
                "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"
            ]
        );
        let wrong = json!({"nameservers": ["a", "1.1.1.1", "1.1.1.1", "1.1.1.1"], "searches": ["A"], "options": [{}]});
        assert_eq!(
            errors("Default", wrong),
            [
                "spec.dnsConfig.nameservers: Invalid value: [\"a\",\"1.1.1.1\",\"1.1.1.1\",\"1.1.1.1\"]: must not have more \
                 than 3 nameservers",
                "spec.dnsConfig.nameservers[0]: Invalid value: \"a\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)",
                "spec.dnsConfig.searches[0]: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case \
                 alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. \
                 'example.com', regex used for validation is \
                 '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')",
                "spec.dnsConfig.options[0]: Required value: must not be empty",
            ]
        );
    }

    #[test]
    fn host_aliases_are_validated() {
        let errors = |alias: Value| lines(host_aliases(&json!({"hostAliases": [alias]})));
        assert!(errors(json!({"ip": "fe80::1", "hostnames": ["a.b"]})).is_empty());
        let wrong = errors(json!({"ip": "1.2.3.400", "hostnames": ["_"]}));
        assert_eq!(
            wrong[0],
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3.400\": must be a valid IP address, (e.g. 10.9.8.7 or \
             2001:db8::ffff)"
        );
        assert!(
            wrong[1]
                .starts_with("spec.hostAliases[0].hostnames[0]: Invalid value: \"_\": a lowercase RFC 1123")
        );
    }
}
