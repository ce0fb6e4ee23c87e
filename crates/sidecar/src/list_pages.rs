//! Follows the pages of a driver's list and detects a list that does not end.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

/// A list with more consecutive pages without another volume is treated as endless. There is no limit on the number of
/// pages: a driver may return one volume per page.
const MAX_PAGES_WITHOUT_VOLUME: usize = 10_000;

/// Tracks the pages of a driver's list.
#[derive(Debug, Default)]
pub(crate) struct ListPages {
    /// Hashes of the tokens: a token may be long, and there may be one per volume.
    seen: HashSet<u64>,
    hasher: RandomState,
    volumes: usize,
    pages_without_volume: usize,
}

/// Why a list does not end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndlessList {
    /// The driver returned a token for the second time.
    #[error("returned next_token {0:?} twice; the list never ends")]
    RepeatedToken(String),
    /// Too many pages listed no other volume.
    #[error("returned more than {MAX_PAGES_WITHOUT_VOLUME} pages without another volume")]
    NoMoreVolumes,
}

impl ListPages {
    /// The token of the next page, if there is one. `volumes` is the number of different volumes listed so far.
    pub(crate) fn after(
        &mut self,
        next_token: String,
        volumes: usize,
    ) -> Result<Option<String>, EndlessList> {
        if next_token.is_empty() {
            return Ok(None);
        }
        self.pages_without_volume = if volumes > self.volumes { 0 } else { self.pages_without_volume + 1 };
        self.volumes = volumes;
        if !self.seen.insert(self.hasher.hash_one(&next_token)) {
            return Err(EndlessList::RepeatedToken(next_token));
        }
        match self.pages_without_volume > MAX_PAGES_WITHOUT_VOLUME {
            true => Err(EndlessList::NoMoreVolumes),
            false => Ok(Some(next_token)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_token_ends_list() {
        let mut pages = ListPages::default();
        for token in ["a", "b"] {
            assert_eq!(pages.after(token.to_owned(), 0), Ok(Some(token.to_owned())));
        }
        // Also if the tokens alternate, and if the volumes are others.
        for (volumes, token) in ["a", "b"].into_iter().enumerate() {
            let repeated = Err(EndlessList::RepeatedToken(token.to_owned()));
            assert_eq!(pages.after(token.to_owned(), volumes), repeated);
        }
        assert_eq!(pages.after(String::new(), 0), Ok(None));
    }

    /// A driver may return one volume per page, and some pages may be empty.
    #[test]
    fn list_may_have_any_number_of_pages_with_volumes() {
        let mut pages = ListPages::default();
        for page in 1..=3 * MAX_PAGES_WITHOUT_VOLUME {
            assert_eq!(pages.after(page.to_string(), page / 2), Ok(Some(page.to_string())));
        }
    }

    #[test]
    fn too_many_pages_without_another_volume_end_list() {
        let mut pages = ListPages::default();
        let ended = (1..).find_map(|page| pages.after(page.to_string(), 1).err().map(|error| (page, error)));
        // The first page has the volume.
        assert_eq!(ended, Some((MAX_PAGES_WITHOUT_VOLUME + 2, EndlessList::NoMoreVolumes)));
    }
}
