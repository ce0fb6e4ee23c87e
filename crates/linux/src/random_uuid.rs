//! Random UUIDs from the kernel.

use std::fs;
use std::path::Path;

use crate::{Error, Result};

const SOURCE: &str = "/proc/sys/kernel/random/uuid";

/// A random UUID (version 4), lower case with dashes.
pub fn random_uuid() -> Result<String> {
    let path = Path::new(SOURCE);
    let text = fs::read_to_string(path).map_err(|error| Error::call("read", path, error))?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_version_4_and_differ() {
        let (one, two) = (random_uuid().unwrap(), random_uuid().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(one.chars().all(|c| c == '-' || c.is_ascii_hexdigit() && !c.is_ascii_uppercase()), "{one}");
        assert_eq!(&one[14..15], "4");
        assert!("89ab".contains(&one[19..20]));
    }
}
