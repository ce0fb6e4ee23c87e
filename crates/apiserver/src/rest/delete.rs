//! The delete and deletecollection verbs: carry out [`decide`] with one write per object.

use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::deletion::{Deletion, decide, responds_with_object, success_status};
use super::options::{DeleteOptions, Propagation};
use super::query::Query;
use super::response::{ApiResponse, List, OutputFormat};
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, list_budget, meta};
use crate::access::{User, restrict_node};
use crate::kinds::{Admission, Operation};
use crate::status::StatusError;
use crate::store::{Change, Entry, Failure, Key, WriteError};

/// The maximum number of concurrent deletions: high enough that one commit contains many of them, low enough that
/// other requests are not delayed.
const MAX_CONCURRENT: usize = 64;

impl Api {
    /// Deletes one object, or starts its deletion.
    pub(crate) async fn delete(
        &self,
        user: &User,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<ApiResponse, StatusError> {
        let kind = target.kind;
        let key = encode::key(kind, &target.namespace, &target.name);
        let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
        // Waits for creates in the namespace that are in progress; later ones observe that it is terminating.
        let lock = match is_namespace {
            true => Some(Arc::new(Arc::clone(self.namespace_deletion_lock()).write_owned().await)),
            false => None,
        };
        loop {
            let Some(entry) = self.store().get(&key) else {
                return Err(StatusError::not_found(kind.resource(), &target.name));
            };
            let object = encode::decode(kind, &entry.value)?;
            self.check_delete(user, target, &object)?;
            let (change, last) = match decide(kind, &object, options, self.now())? {
                Deletion::Wait => return Ok(ApiResponse::Object(status_code(false, options), entry.value)),
                Deletion::Mark(next) => {
                    (Change::Update(entry.revision, encode::body(kind, &next, self.now())), next)
                }
                Deletion::Remove(last) => {
                    (Change::Delete(entry.revision, encode::body(kind, &last, self.now())), last)
                }
            };
            let removed = matches!(change, Change::Delete(..));
            let stored = if options.dry_run {
                encode::stored(kind, &last)
            } else {
                match self.write_with(lock.clone(), key.clone(), change).await {
                    Ok(entry) => entry.value,
                    // Decide again from the current object; a precondition on the resourceVersion then fails.
                    Err(WriteError::Conflict(_)) => continue,
                    Err(error) => return Err(super::write_status_error(kind, &target.name, error)),
                }
            };
            return Ok(if removed && !responds_with_object(kind) {
                ApiResponse::Json(200, success_status(kind, &last))
            } else {
                ApiResponse::Object(status_code(removed, options), stored)
            });
        }
    }

    /// Performs a write, and holds the lock until the store has completed it, even if the request is dropped: the store
    /// completes the write in any case.
    async fn write_with<L: Send + 'static>(
        &self,
        lock: Option<L>,
        key: Key,
        change: Change,
    ) -> Result<Entry, WriteError> {
        let Some(lock) = lock else { return self.store().write(key, change).await };
        let store = self.store().clone();
        let writing = tokio::spawn(async move {
            let written = store.write(key, change).await;
            drop(lock);
            written
        });
        writing.await.unwrap_or(Err(WriteError::Failed(Failure::Closed)))
    }

    fn check_delete(&self, user: &User, target: &Target, object: &Value) -> Result<(), StatusError> {
        let lookup = self.objects();
        let admission =
            Admission { operation: Operation::Delete, subresource: "", old: Some(object), lookup: &lookup };
        (target.kind.admit)(&mut object.clone(), &admission)?;
        (target.kind.validate_admission)(object, &admission)?;
        restrict_node(user, &super::attributes(target, ""), None, Some(object), &lookup)
    }

    /// Deletes these objects concurrently, so that one commit contains many deletions. Returns for each object whether
    /// it still existed. After the first error no further deletion starts.
    pub(crate) async fn delete_all(
        &self,
        user: &User,
        targets: Vec<Target>,
        options: &DeleteOptions,
    ) -> Result<Vec<bool>, StatusError> {
        let mut deleted = vec![false; targets.len()];
        let (mut waiting, mut running) = (targets.into_iter().enumerate(), JoinSet::new());
        let mut refused = None;
        loop {
            while refused.is_none()
                && running.len() < MAX_CONCURRENT
                && let Some((at, target)) = waiting.next()
            {
                let (api, user, options) = (self.clone(), user.clone(), options.clone());
                running.spawn(async move { (at, api.delete(&user, &target, &options).await.map(drop)) });
            }
            match running.join_next().await {
                None => break,
                Some(Ok((at, Ok(())))) => deleted[at] = true,
                // The object is deleted already.
                Some(Ok((_, Err(status_error)))) if status_error.code == 404 => {}
                Some(Ok((_, Err(status_error)))) => refused = refused.or(Some(status_error)),
                Some(Err(error)) => {
                    let message = format!("Internal error occurred: {error}");
                    refused = refused.or(Some(StatusError::new(500, "InternalError", message)));
                }
            }
        }
        refused.map_or(Ok(deleted), Err)
    }

    /// Deletes the selected objects of a kind in one or all namespaces. Returns the deleted objects.
    pub(crate) async fn delete_collection(
        &self,
        user: &User,
        target: &Target,
        query: &Query,
        options: &DeleteOptions,
        format: OutputFormat,
    ) -> Result<ApiResponse, StatusError> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let page =
            self.store().list(&encode::prefix(kind, &target.namespace), None, None, 0).map_err(|error| {
                StatusError::new(500, "InternalError", format!("Internal error occurred: {error}"))
            })?;
        let (mut targets, mut objects) = (Vec::new(), Vec::new());
        for entry in page.entries {
            let object = encode::decode(kind, &entry.value)?;
            if selection.matches(&object) {
                targets.push(Target {
                    namespace: meta::text(&object, "/metadata/namespace").into(),
                    name: meta::name(&object).into(),
                    ..target.clone()
                });
                objects.push(entry.value);
            }
        }
        let mut deleted = self.delete_all(user, targets, options).await?.into_iter();
        objects.retain(|_| deleted.next() == Some(true));
        let (revision, token) = (page.revision, String::new());
        let mut list = List { objects, revision, token, remaining: None, budget: None };
        // The deletion is done, so respond even without a memory reservation.
        let weight = list_budget::weight(&list, format);
        list.budget = list_budget::acquire(self.list_budget(), weight).await.ok();
        Ok(ApiResponse::List(list))
    }
}

/// Upstream responds with 202 only if the object remains and the deprecated `orphanDependents: false` was requested.
fn status_code(removed: bool, options: &DeleteOptions) -> u16 {
    let requested = options.uses_orphan_dependents && options.propagation == Some(Propagation::Background);
    if !removed && requested { 202 } else { 200 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_202_only_where_upstream_uses_it() {
        let options = |propagation, uses_orphan_dependents| DeleteOptions {
            propagation,
            uses_orphan_dependents,
            ..DeleteOptions::default()
        };
        for (removed, options, expected) in [
            (false, options(None, false), 200),
            (false, options(Some(Propagation::Foreground), false), 200),
            (false, options(Some(Propagation::Background), false), 200),
            (false, options(Some(Propagation::Background), true), 202),
            (true, options(Some(Propagation::Background), true), 200),
        ] {
            assert_eq!(status_code(removed, &options), expected, "{options:?}");
        }
    }
}
