//! Names and handles of volumes: unique names in a Node's status, ids in a local pool, names at DigitalOcean, endpoints.
//!
//! Promise: parsing never panics. `parse(print(x)) == x`. A name or an id that becomes part of a path cannot leave its directory,
//! and a name that was made valid stays as it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_csi::Endpoint;
use wharf_driver_digitalocean::fuzzing::{record_file, volume_name};
use wharf_driver_local::fuzzing::{ids, is_id, parse_trash};
use wharf_model::UniqueVolumeName;

fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

fuzz_target!(|text: &str| {
    if let Some(name) = UniqueVolumeName::parse(text) {
        assert_eq!(name.to_string(), text);
    }
    let (driver, handle) = text.split_once('\0').unwrap_or(("d.test", text));
    if !driver.contains('^') {
        let name = UniqueVolumeName { driver: driver.into(), handle: handle.into() };
        assert_eq!(UniqueVolumeName::parse(&name.to_string()).as_ref(), Some(&name));
        assert!(is_file_name(&name.attachment_name(driver)));
    }

    assert!(ids(text).iter().all(|id| is_id(id)));
    assert!(!is_id(text) || is_file_name(text));
    if let Some((id, number)) = parse_trash(text) {
        assert!(is_id(id) && is_file_name(text));
        assert_eq!(parse_trash(&format!("{id}.{number}")), Some((id, number)));
    }

    assert!(record_file(text).is_none_or(|file| is_file_name(&file)));
    let name = volume_name(text);
    assert!(is_file_name(&name) && name.len() <= 64);
    assert_eq!(volume_name(&name), name);

    if let Ok(endpoint) = text.parse::<Endpoint>() {
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
});
