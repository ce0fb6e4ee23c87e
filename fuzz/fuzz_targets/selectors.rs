//! Label selectors and field selectors.
//!
//! Promise: parsing never panics. A selector that is parsed matches without a panic, and a selector and what it excludes
//! do not match the same object: `k=v` and `k!=v`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use wharf_apiserver::select::{FieldSelector, LabelSelector};

// An input is a selector, a NUL character, a key, a NUL character and a value.
fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.splitn(3, '\0');
    let mut next = || parts.next().unwrap_or_default();
    let (selector, key, value) = (next(), next(), next());
    let object = json!({"metadata": {"labels": {key: value}}});
    if let Ok(labels) = LabelSelector::parse(selector) {
        let _ = labels.matches(&object);
        assert_eq!(labels.is_empty(), labels == LabelSelector::default());
    }
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let pair = |operator: &str| LabelSelector::parse(&format!("{key}{operator}{value}"));
    if plain(key)
        && plain(value)
        && let (Ok(equal), Ok(unequal)) = (pair("="), pair("!="))
    {
        let listed = LabelSelector::parse(&format!("{key} in ({value})"));
        assert_ne!(equal.matches(&object), unequal.matches(&object), "{key:?} {value:?}");
        assert!(listed.is_ok_and(|listed| listed == equal), "{key:?} {value:?}");
    }
    if let Ok(fields) = FieldSelector::parse(selector) {
        let _ = fields.matches(|field| (field == key).then(|| value.to_owned()));
        let _ = fields.check_supported([key], true);
        assert_eq!(fields.is_empty(), fields == FieldSelector::default());
    }
    // Escaped, any text is a value.
    let escaped: String = value
        .chars()
        .flat_map(|c| ['\\'].into_iter().filter(move |_| "\\,=".contains(c)).chain([c]))
        .collect();
    let field = FieldSelector::parse(&format!("metadata.name={escaped}")).expect("an escaped value");
    assert_eq!(field.requires_exact_match("metadata.name"), Some(value));
});
