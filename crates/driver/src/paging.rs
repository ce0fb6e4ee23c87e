//! Paging that survives insertions and deletions: entries come in the order of their ids, and a token is the
//! id after which the next page begins, whether or not that entry still exists. So an entry that is there
//! all the while is seen exactly once.

use tonic::Status;

use crate::backend::Page;
use crate::validate;

/// Many enough for few calls, and few enough that a page stays below gRPC's usual 4 MiB.
const LARGEST_PAGE: usize = 1000;
/// Tells our tokens from anything else.
const MARK: char = '>';

/// What a caller asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paging {
    /// Entries with a greater id than this one.
    pub(crate) after: Option<String>,
    /// At most so many.
    pub(crate) max: usize,
}

impl Paging {
    /// Reads `max_entries` and `starting_token`. By CSI a token that is not valid is ABORTED.
    pub(crate) fn parse(max_entries: i32, starting_token: &str) -> Result<Self, Status> {
        let max =
            validate::max("max_entries", max_entries)?.map_or(LARGEST_PAGE, |max| max.min(LARGEST_PAGE));
        let after = match starting_token {
            "" => None,
            token => match token.strip_prefix(MARK).filter(|id| validate::id("starting_token", id).is_ok()) {
                Some(id) => Some(id.to_owned()),
                None => {
                    return Err(Status::aborted(
                        "starting_token is none that this driver gave; list from the start",
                    ));
                }
            },
        };
        Ok(Self { after, max })
    }
}

/// The token of the page after this one; empty if there is none.
pub(crate) fn next_token<T>(page: &Page<T>, id: impl Fn(&T) -> &str) -> String {
    match page.entries.last() {
        Some(last) if page.more => token(id(last)),
        _ => String::new(),
    }
}

/// The token of the page that begins after this id.
pub(crate) fn token(id: &str) -> String {
    format!("{MARK}{id}")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn tokens_come_back_as_they_were_given() {
        let page = Page { entries: vec!["a", "b"], more: true };
        let token = next_token(&page, |id| id);
        assert_eq!(Paging::parse(2, &token).unwrap(), Paging { after: Some("b".to_owned()), max: 2 });
        assert_eq!(next_token(&Page { more: false, ..page }, |id| id), "");
        assert_eq!(next_token(&Page::<&str> { entries: vec![], more: true }, |id| id), "");
        assert_eq!(Paging::parse(0, "").unwrap(), Paging { after: None, max: LARGEST_PAGE });
        assert_eq!(Paging::parse(i32::MAX, "").unwrap(), Paging { after: None, max: LARGEST_PAGE });
    }

    #[test]
    fn other_tokens_are_refused() {
        let long = format!(">{}", "x".repeat(1 << 20));
        for token in ["invalid-token", "b", ">", ">a\0", long.as_str()] {
            assert_eq!(Paging::parse(0, token).unwrap_err().code(), Code::Aborted, "{token:.20}");
        }
        assert_eq!(Paging::parse(-1, "").unwrap_err().code(), Code::InvalidArgument);
    }
}
