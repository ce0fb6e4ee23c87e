//! Paging that tolerates insertions and deletions. Entries are sorted by id. A token contains the last id of the previous
//! page, and is valid even if that entry no longer exists. An entry that exists during the whole listing is therefore
//! returned exactly once.

use tonic::Status;

use crate::backend::ListPage;
use crate::validate::{self, Rules};

/// Maximum number of entries of a page, so that a response stays below gRPC's default limit of 4 MiB.
const MAX_PAGE: usize = 1000;
/// Distinguishes our tokens from other strings.
const TOKEN_PREFIX: char = '>';

/// The page that a caller requested.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paging {
    /// Only entries with an id greater than this one.
    pub(crate) after: Option<String>,
    /// Maximum number of entries.
    pub(crate) max: usize,
}

impl Paging {
    /// Parses `max_entries` and `starting_token`. CSI requires ABORTED for an invalid token.
    pub(crate) fn parse(rules: Rules, max_entries: i32, starting_token: &str) -> Result<Self, Status> {
        let max = validate::max("max_entries", max_entries)?.map_or(MAX_PAGE, |max| max.min(MAX_PAGE));
        let after = match starting_token {
            "" => None,
            token => {
                match token.strip_prefix(TOKEN_PREFIX).filter(|id| rules.id("starting_token", id).is_ok()) {
                    Some(id) => Some(id.to_owned()),
                    None => {
                        return Err(Status::aborted(
                            "starting_token was not issued by this driver; list from the start",
                        ));
                    }
                }
            }
        };
        Ok(Self { after, max })
    }
}

/// The token of the page after this one; empty if there is none.
pub(crate) fn next_token<T>(page: &ListPage<T>, id: impl Fn(&T) -> &str) -> String {
    match page.entries.last() {
        Some(last) if page.more => token(id(last)),
        _ => String::new(),
    }
}

/// The token of the page that begins after this id.
pub(crate) fn token(id: &str) -> String {
    format!("{TOKEN_PREFIX}{id}")
}

#[cfg(test)]
mod tests {
    const RULES: Rules = Rules { mount_group: false, max_id: validate::MAX_STRING };

    use tonic::Code;

    use super::*;

    #[test]
    fn issued_tokens_are_parsed() {
        let page = ListPage { entries: vec!["a", "b"], more: true };
        let token = next_token(&page, |id| id);
        assert_eq!(Paging::parse(RULES, 2, &token).unwrap(), Paging { after: Some("b".to_owned()), max: 2 });
        assert_eq!(next_token(&ListPage { more: false, ..page }, |id| id), "");
        assert_eq!(next_token(&ListPage::<&str> { entries: vec![], more: true }, |id| id), "");
        assert_eq!(Paging::parse(RULES, 0, "").unwrap(), Paging { after: None, max: MAX_PAGE });
        assert_eq!(Paging::parse(RULES, i32::MAX, "").unwrap(), Paging { after: None, max: MAX_PAGE });
    }

    #[test]
    fn tokens_of_other_origin_are_aborted() {
        let long = format!(">{}", "x".repeat(1 << 20));
        for token in ["invalid-token", "b", ">", ">a\0", long.as_str()] {
            assert_eq!(Paging::parse(RULES, 0, token).unwrap_err().code(), Code::Aborted, "{token:.20}");
        }
        assert_eq!(Paging::parse(RULES, -1, "").unwrap_err().code(), Code::InvalidArgument);
    }
}
