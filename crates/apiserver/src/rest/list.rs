//! Lists: of one state, whole or by pages.

use super::answer::{Answer, List, Look};
use super::options::{At, ListPlan};
use super::page::Token;
use super::query::Query;
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, room};
use crate::status::{Cause, Refusal};
use crate::store::{ListError, Revision};

/// How many objects are looked at in one go when not all of them are selected.
const STRIDE: usize = 500;

const TOO_OLD: &str = "The resourceVersion for the provided list is too old.";
const PAGE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl Api {
    /// A list, or a page of one, with room for its answer.
    pub(crate) async fn list(
        &self,
        target: &Target,
        query: &Query,
        plan: &ListPlan,
        look: Look,
    ) -> Result<Answer, Refusal> {
        let mut list = self.listed(target, query, plan)?;
        let weight = room::weight(&list, look);
        let mut share = self.room().now(weight);
        if share.is_none() {
            // Nothing is held meanwhile; who waited gets what is there then.
            drop(list);
            share = Some(self.room().wait(weight).await?);
            list = self.listed(target, query, plan)?;
        }
        list.room = share;
        Ok(Answer::List(list))
    }

    fn listed(&self, target: &Target, query: &Query, plan: &ListPlan) -> Result<List, Refusal> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let prefix = encode::prefix(kind, &target.namespace);
        let (at, mut after) = match &plan.at {
            At::Newest => (None, None),
            At::NotOlder(revision) => {
                self.has_reached(*revision)?;
                (None, None)
            }
            At::Exactly(revision) => (Some(*revision), None),
            At::Behind(token) => (token.revision, Some(format!("{prefix}{}", token.after()))),
        };
        let refuse = |error| list_refusal(error, &plan.at);
        let mut list =
            List { objects: Vec::new(), revision: 0, token: String::new(), remaining: None, room: None };
        if selection.is_all() {
            let page = self.store().list(&prefix, at, after.as_deref(), plan.limit).map_err(refuse)?;
            list.revision = page.revision;
            if let (true, Some(last)) = (page.more, page.entries.last()) {
                list.token = behind(&prefix, &last.key, page.revision);
                list.remaining = Some(page.remaining);
            }
            list.objects = page.entries.into_iter().map(|entry| entry.value).collect();
            return Ok(list);
        }
        let mut at = at;
        let stride = if plan.limit == 0 { 0 } else { STRIDE };
        loop {
            let page = self.store().list(&prefix, at, after.as_deref(), stride).map_err(refuse)?;
            // The rest of the list is of the same state.
            at = Some(page.revision);
            list.revision = page.revision;
            let looked = page.entries.len();
            after = page.entries.last().map(|entry| entry.key.to_string()).or(after);
            for (position, entry) in page.entries.into_iter().enumerate() {
                if !selection.can_match(&entry.key)
                    || !selection.matches(&encode::decode(kind, &entry.value)?)
                {
                    continue;
                }
                list.objects.push(entry.value);
                if plan.limit > 0 && list.objects.len() == plan.limit && (page.more || position + 1 < looked)
                {
                    list.token = behind(&prefix, &entry.key, page.revision);
                    return Ok(list);
                }
            }
            if !page.more {
                return Ok(list);
            }
        }
    }

    /// That the store has been there: a client may have seen what another server wrote, never what is yet to come.
    pub(crate) fn has_reached(&self, revision: Revision) -> Result<(), Refusal> {
        let current = self.store().revision();
        if revision > current { Err(too_large(revision, current)) } else { Ok(()) }
    }
}

fn behind(prefix: &str, last: &str, revision: Revision) -> String {
    Token::behind(last.strip_prefix(prefix).unwrap_or(last), Some(revision)).text()
}

fn list_refusal(error: ListError, at: &At) -> Refusal {
    match (error, at) {
        (ListError::Compacted { .. }, At::Behind(token)) => {
            let mut refusal = Refusal::expired(PAGE_TOO_OLD);
            refusal.details.continues = Token { revision: None, ..token.clone() }.text();
            refusal
        }
        (ListError::Compacted { .. }, _) => Refusal::expired(TOO_OLD),
        (ListError::Future { current }, At::Exactly(revision)) => too_large(*revision, current),
        (ListError::Future { current }, At::Behind(token)) => too_large(token.revision.unwrap_or(0), current),
        (ListError::Future { current }, At::Newest | At::NotOlder(_)) => too_large(0, current),
    }
}

fn too_large(revision: Revision, current: Revision) -> Refusal {
    let message = format!("Timeout: Too large resource version: {revision}, current: {current}");
    let mut refusal = Refusal::new(504, "Timeout", message);
    let message = "Too large resource version".into();
    refusal.details.causes.push(Cause { reason: "ResourceVersionTooLarge", field: String::new(), message });
    refusal.details.retry_after_seconds = Some(1);
    refusal
}
