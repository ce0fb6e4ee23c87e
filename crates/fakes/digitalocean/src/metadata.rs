//! The metadata service of one droplet: a tree of plain texts, also available as one JSON document.

use serde_json::{Value, json};

use crate::state::Droplet;

/// The content at a path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// Plain text without a trailing newline: clients use it verbatim.
    Text(String),
    Json(Value),
    /// An index without its slash: 301 to this path.
    Moved(String),
    Nothing,
}

/// Looks up a path of this droplet's service.
pub(crate) fn lookup(droplet: &Droplet, path: &str) -> Found {
    let document = document(droplet);
    if path == "/metadata/v1.json" {
        return Found::Json(document);
    }
    if path == "/metadata/v1" {
        return Found::Moved("/metadata/v1/".to_owned());
    }
    let Some(rest) = path.strip_prefix("/metadata/v1/") else { return Found::Nothing };
    let mut node = &tree(document);
    for part in rest.split('/').filter(|part| !part.is_empty()) {
        let next = match node {
            Value::Object(map) => map.get(part),
            Value::Array(list) => part.parse().ok().and_then(|i: usize| list.get(i)),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => return Found::Nothing,
        }
    }
    let slash = rest.is_empty() || rest.ends_with('/');
    match node {
        Value::Object(_) | Value::Array(_) if !slash => Found::Moved(format!("{path}/")),
        Value::Object(map) => {
            Found::Text(map.iter().map(|(name, value)| entry(name, value)).collect::<Vec<_>>().join("\n"))
        }
        Value::Array(list) => {
            let names = list.iter().enumerate().map(|(i, value)| entry(&i.to_string(), value));
            Found::Text(names.collect::<Vec<_>>().join("\n"))
        }
        _ if slash => Found::Nothing,
        Value::String(text) => Found::Text(text.clone()),
        other => Found::Text(other.to_string()),
    }
}

/// A line of an index.
fn entry(name: &str, value: &Value) -> String {
    match value {
        Value::Object(_) | Value::Array(_) => format!("{name}/"),
        _ => name.to_owned(),
    }
}

/// The document as a path tree: with different names, and some lists as lines.
fn tree(document: Value) -> Value {
    let lines = |list: &Value| lines_of(list).collect::<Vec<_>>().join("\n");
    json!({
        "id": document["droplet_id"],
        "hostname": document["hostname"],
        "user-data": document["user_data"],
        "vendor-data": document["vendor_data"],
        "public-keys": lines(&document["public_keys"]),
        "region": document["region"],
        "interfaces": document["interfaces"],
        "dns": { "nameservers": lines(&document["dns"]["nameservers"]) },
        "floating_ip": document["floating_ip"],
        "reserved_ip": document["reserved_ip"],
        // The names of tags are the index itself.
        "tags": Value::Object(lines_of(&document["tags"]).map(|tag| (tag.to_owned(), json!(""))).collect()),
        "features": document["features"],
    })
}

fn lines_of(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn document(droplet: &Droplet) -> Value {
    let host = droplet.id % 250 + 2;
    json!({
        "droplet_id": droplet.id,
        "hostname": droplet.name,
        "user_data": "",
        "vendor_data": "",
        "public_keys": [],
        "region": droplet.region,
        "tags": droplet.tags,
        "dns": { "nameservers": ["127.0.0.1"] },
        "interfaces": {
            "public": [{
                "ipv4": {
                    "ip_address": format!("192.0.2.{host}"), "netmask": "255.255.255.0", "gateway": "192.0.2.1",
                },
                "mac": format!("04:01:2a:0f:2a:{:02x}", droplet.id % 256),
                "type": "public",
            }],
            "private": [],
        },
        "floating_ip": { "ipv4": { "active": false } },
        "reserved_ip": { "ipv4": { "active": false }, "ipv6": { "active": false } },
        "features": { "dhcp_enabled": true, "vpc_peering_enabled": false },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_paths_are_resolved() {
        let droplet = Droplet {
            id: 2756294,
            name: "node-1".into(),
            region: "nyc3".into(),
            tags: vec!["k8s".into()],
            created: 0,
        };
        let text = |text: &str| Found::Text(text.to_owned());
        let moved = |path: &str| Found::Moved(path.to_owned());
        let table = [
            ("/metadata/v1/id", text("2756294")),
            ("/metadata/v1/region", text("nyc3")),
            ("/metadata/v1/hostname", text("node-1")),
            ("/metadata/v1/user-data", text("")),
            ("/metadata/v1/tags/", text("k8s")),
            ("/metadata/v1/dns/nameservers", text("127.0.0.1")),
            ("/metadata/v1/interfaces/public/0/type", text("public")),
            ("/metadata/v1/features/dhcp_enabled", text("true")),
            ("/metadata/v1", moved("/metadata/v1/")),
            ("/metadata/v1/dns", moved("/metadata/v1/dns/")),
            ("/metadata/v1/interfaces/public", moved("/metadata/v1/interfaces/public/")),
            ("/metadata/v1/id/", Found::Nothing),
            ("/metadata/v1/nothing", Found::Nothing),
            ("/metadata/v1/id/more", Found::Nothing),
            ("/", Found::Nothing),
        ];
        for (path, expected) in table {
            assert_eq!(lookup(&droplet, path), expected, "{path}");
        }
        let Found::Text(index) = lookup(&droplet, "/metadata/v1/") else { panic!("no index") };
        let mut lines: Vec<&str> = index.lines().collect();
        lines.sort_unstable();
        let mut expected = vec![
            "id",
            "hostname",
            "user-data",
            "vendor-data",
            "public-keys",
            "region",
            "interfaces/",
            "dns/",
            "floating_ip/",
            "reserved_ip/",
            "tags/",
            "features/",
        ];
        expected.sort_unstable();
        assert_eq!(lines, expected);
        let Found::Json(whole) = lookup(&droplet, "/metadata/v1.json") else { panic!("no document") };
        assert_eq!(whole["droplet_id"], 2756294);
        assert_eq!(whole["region"], "nyc3");
    }
}
