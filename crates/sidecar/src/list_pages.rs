//! Follows the pages of a driver's list, and ends a list that never would.

use std::collections::HashSet;

/// A list with more pages is taken as endless. With 100 volumes per page this is a million volumes.
const MAX_PAGES: usize = 10_000;

/// Tracks the pages of a driver's list.
#[derive(Debug, Default)]
pub(crate) struct ListPages {
    seen: HashSet<String>,
}

/// Why a list does not end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndlessList {
    /// The driver returned a token for the second time.
    #[error("returned next_token {0:?} twice; the list never ends")]
    RepeatedToken(String),
    /// The list has too many pages.
    #[error("has more than {MAX_PAGES} pages")]
    TooManyPages,
}

impl ListPages {
    /// The token of the next page, if there is one.
    pub(crate) fn after(&mut self, next_token: String) -> Result<Option<String>, EndlessList> {
        match next_token {
            token if token.is_empty() => Ok(None),
            token if self.seen.contains(&token) => Err(EndlessList::RepeatedToken(token)),
            _ if self.seen.len() + 1 >= MAX_PAGES => Err(EndlessList::TooManyPages),
            token => {
                self.seen.insert(token.clone());
                Ok(Some(token))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_token_or_too_many_pages_end_list() {
        let mut pages = ListPages::default();
        for token in ["a", "b"] {
            assert_eq!(pages.after(token.to_owned()), Ok(Some(token.to_owned())));
        }
        // Also if the tokens alternate.
        for token in ["a", "b"] {
            assert_eq!(pages.after(token.to_owned()), Err(EndlessList::RepeatedToken(token.to_owned())));
        }
        assert_eq!(pages.after(String::new()), Ok(None));
        let mut pages = ListPages::default();
        let ended = (1..).find_map(|page| pages.after(page.to_string()).err().map(|error| (page, error)));
        assert_eq!(ended, Some((MAX_PAGES, EndlessList::TooManyPages)));
    }
}
