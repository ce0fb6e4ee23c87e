//! The list verb: all objects of one revision, whole or in pages.

use super::continue_token::ContinueToken;
use super::options::{ListPlan, RevisionMatch};
use super::query::Query;
use super::response::{ApiResponse, List, OutputFormat};
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, list_budget};
use crate::status::{Cause, StatusError};
use crate::store::{ListError, Revision};

/// How many objects are read at a time when a selector filters them.
const BATCH: usize = 500;

const TOO_OLD: &str = "The resourceVersion for the provided list is too old.";
const PAGE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl Api {
    /// Returns a list or a page of one, with memory reserved for its response.
    pub(crate) async fn list(
        &self,
        target: &Target,
        query: &Query,
        plan: &ListPlan,
        format: OutputFormat,
    ) -> Result<ApiResponse, StatusError> {
        let mut list = self.read_list(target, query, plan)?;
        let weight = list_budget::weight(&list, format);
        let mut share = self.list_budget().try_acquire(weight);
        if share.is_none() {
            // Hold nothing while waiting, and read the list again afterwards.
            drop(list);
            share = Some(list_budget::acquire(self.list_budget(), weight).await?);
            list = self.read_list(target, query, plan)?;
        }
        list.budget = share;
        Ok(ApiResponse::List(list))
    }

    fn read_list(&self, target: &Target, query: &Query, plan: &ListPlan) -> Result<List, StatusError> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let prefix = encode::prefix(kind, &target.namespace);
        let (at, mut after) = match &plan.at {
            RevisionMatch::Newest => (None, None),
            RevisionMatch::NotOlderThan(revision) => {
                self.has_reached(*revision)?;
                (None, None)
            }
            RevisionMatch::Exact(revision) => (Some(*revision), None),
            RevisionMatch::Continue(token) => (token.revision, Some(format!("{prefix}{}", token.last_key()))),
        };
        let refuse = |error| list_status_error(error, &plan.at);
        let mut list =
            List { objects: Vec::new(), revision: 0, token: String::new(), remaining: None, budget: None };
        if selection.is_all() {
            let page = self.store().list(&prefix, at, after.as_deref(), plan.limit).map_err(refuse)?;
            list.revision = page.revision;
            if let (true, Some(last)) = (page.more, page.entries.last()) {
                list.token = continue_after(&prefix, &last.key, page.revision);
                list.remaining = Some(page.remaining);
            }
            list.objects = page.entries.into_iter().map(|entry| entry.value).collect();
            return Ok(list);
        }
        let mut at = at;
        let batch = if plan.limit == 0 { 0 } else { BATCH };
        loop {
            let page = self.store().list(&prefix, at, after.as_deref(), batch).map_err(refuse)?;
            // The rest of the list is read at the same revision.
            at = Some(page.revision);
            list.revision = page.revision;
            let count = page.entries.len();
            after = page.entries.last().map(|entry| entry.key.to_string()).or(after);
            for (position, entry) in page.entries.into_iter().enumerate() {
                if !selection.can_match(&entry.key)
                    || !selection.matches(&encode::decode(kind, &entry.value)?)
                {
                    continue;
                }
                list.objects.push(entry.value);
                if plan.limit > 0 && list.objects.len() == plan.limit && (page.more || position + 1 < count) {
                    list.token = continue_after(&prefix, &entry.key, page.revision);
                    return Ok(list);
                }
            }
            if !page.more {
                return Ok(list);
            }
        }
    }

    /// Checks that the store has reached a revision. A client never legitimately knows a later one.
    pub(crate) fn has_reached(&self, revision: Revision) -> Result<(), StatusError> {
        let current = self.store().revision();
        if revision > current { Err(too_large(revision, current)) } else { Ok(()) }
    }
}

fn continue_after(prefix: &str, last: &str, revision: Revision) -> String {
    ContinueToken::following(last.strip_prefix(prefix).unwrap_or(last), Some(revision)).encode()
}

fn list_status_error(error: ListError, at: &RevisionMatch) -> StatusError {
    match (error, at) {
        (ListError::Compacted { .. }, RevisionMatch::Continue(token)) => {
            let mut status_error = StatusError::expired(PAGE_TOO_OLD);
            status_error.details.continue_token = ContinueToken { revision: None, ..token.clone() }.encode();
            status_error
        }
        (ListError::Compacted { .. }, _) => StatusError::expired(TOO_OLD),
        (ListError::Future { current }, RevisionMatch::Exact(revision)) => too_large(*revision, current),
        (ListError::Future { current }, RevisionMatch::Continue(token)) => {
            too_large(token.revision.unwrap_or(0), current)
        }
        (ListError::Future { current }, RevisionMatch::Newest | RevisionMatch::NotOlderThan(_)) => {
            too_large(0, current)
        }
    }
}

fn too_large(revision: Revision, current: Revision) -> StatusError {
    let message = format!("Timeout: Too large resource version: {revision}, current: {current}");
    let mut status_error = StatusError::new(504, "Timeout", message);
    let message = "Too large resource version".into();
    status_error.details.causes.push(Cause {
        reason: "ResourceVersionTooLarge",
        field: String::new(),
        message,
    });
    status_error.details.retry_after_seconds = Some(1);
    status_error
}
