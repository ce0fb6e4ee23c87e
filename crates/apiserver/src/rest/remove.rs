//! Deletions: what [`decide`] says, done with one write each.

use serde_json::Value;
use tokio::task::JoinSet;

use super::answer::{Answer, List, Look};
use super::delete::{Deletion, answers_with_object, decide, success};
use super::options::{DeleteOptions, Propagation};
use super::query::Query;
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, meta, room};
use crate::access::{User, restrict_node};
use crate::kinds::{Admission, Operation};
use crate::status::Refusal;
use crate::store::{Change, WriteError};

/// Deletions at a time: enough for one commit to take many, few enough that others get their turn.
const TOGETHER: usize = 64;

impl Api {
    /// Deletes one object, or begins to.
    pub(crate) async fn delete(
        &self,
        user: &User,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Answer, Refusal> {
        let kind = target.kind;
        let key = encode::key(kind, &target.namespace, &target.name);
        let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
        // Waits for those who are just making something in it; who comes later finds it closed.
        let _end = if is_namespace { Some(self.ends_of_namespaces().write().await) } else { None };
        loop {
            let Some(entry) = self.store().get(&key) else {
                return Err(Refusal::not_found(kind.resource(), &target.name));
            };
            let object = encode::decode(kind, &entry.value)?;
            self.may_delete(user, target, &object)?;
            let (change, last) = match decide(kind, &object, options, self.now())? {
                Deletion::Wait => return Ok(Answer::Object(code(false, options), entry.value)),
                Deletion::Mark(next) => {
                    (Change::Update(entry.revision, encode::body(kind, &next, self.now())), next)
                }
                Deletion::Remove(last) => {
                    (Change::Delete(entry.revision, encode::body(kind, &last, self.now())), last)
                }
            };
            let gone = matches!(change, Change::Delete(..));
            let stored = if options.dry_run {
                encode::stored(kind, &last)
            } else {
                match self.store().write(key.clone(), change).await {
                    Ok(entry) => entry.value,
                    // Decide again from what is there now; a precondition on the version will say so then.
                    Err(WriteError::Changed(_)) => continue,
                    Err(error) => return Err(super::write_refusal(kind, &target.name, error)),
                }
            };
            return Ok(if gone && !answers_with_object(kind) {
                Answer::Json(200, success(kind, &last))
            } else {
                Answer::Object(code(gone, options), stored)
            });
        }
    }

    fn may_delete(&self, user: &User, target: &Target, object: &Value) -> Result<(), Refusal> {
        let lookup = self.objects();
        let admission =
            Admission { operation: Operation::Delete, subresource: "", old: Some(object), lookup: &lookup };
        (target.kind.admit)(&mut object.clone(), &admission)?;
        (target.kind.confirm)(object, &admission)?;
        restrict_node(user, &super::attributes(target, ""), None, Some(object), &lookup)
    }

    /// Deletes these, many at a time, so that one commit takes many; says of each whether it was still there. After the
    /// first that is refused no other one is begun.
    pub(crate) async fn delete_each(
        &self,
        user: &User,
        targets: Vec<Target>,
        options: &DeleteOptions,
    ) -> Result<Vec<bool>, Refusal> {
        let mut deleted = vec![false; targets.len()];
        let (mut waiting, mut running) = (targets.into_iter().enumerate(), JoinSet::new());
        let mut refused = None;
        loop {
            while refused.is_none()
                && running.len() < TOGETHER
                && let Some((at, target)) = waiting.next()
            {
                let (api, user, options) = (self.clone(), user.clone(), options.clone());
                running.spawn(async move { (at, api.delete(&user, &target, &options).await.map(drop)) });
            }
            match running.join_next().await {
                None => break,
                Some(Ok((at, Ok(())))) => deleted[at] = true,
                // Somebody was quicker.
                Some(Ok((_, Err(refusal)))) if refusal.code == 404 => {}
                Some(Ok((_, Err(refusal)))) => refused = refused.or(Some(refusal)),
                Some(Err(error)) => {
                    let words = format!("Internal error occurred: {error}");
                    refused = refused.or(Some(Refusal::new(500, "InternalError", words)));
                }
            }
        }
        refused.map_or(Ok(deleted), Err)
    }

    /// Deletes what is in a namespace, or all of a kind, and selected; answers with what it was.
    pub(crate) async fn delete_collection(
        &self,
        user: &User,
        target: &Target,
        query: &Query,
        options: &DeleteOptions,
        look: Look,
    ) -> Result<Answer, Refusal> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let page =
            self.store().list(&encode::prefix(kind, &target.namespace), None, None, 0).map_err(|error| {
                Refusal::new(500, "InternalError", format!("Internal error occurred: {error}"))
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
        let mut deleted = self.delete_each(user, targets, options).await?.into_iter();
        objects.retain(|_| deleted.next() == Some(true));
        let (revision, token) = (page.revision, String::new());
        let mut list = List { objects, revision, token, remaining: None, room: None };
        // What is done is told, though there were no room for it.
        list.room = self.room().wait(room::weight(&list, look)).await.ok();
        Ok(Answer::List(list))
    }
}

/// Upstream says 202 only to those who asked in the old way that dependents go too.
fn code(gone: bool, options: &DeleteOptions) -> u16 {
    let asked = options.old_way && options.propagation == Some(Propagation::Background);
    if !gone && asked { 202 } else { 200 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_only_where_upstream_says_so() {
        let of = |propagation, old_way| DeleteOptions { propagation, old_way, ..DeleteOptions::default() };
        for (gone, options, expected) in [
            (false, of(None, false), 200),
            (false, of(Some(Propagation::Foreground), false), 200),
            (false, of(Some(Propagation::Background), false), 200),
            (false, of(Some(Propagation::Background), true), 202),
            (true, of(Some(Propagation::Background), true), 200),
        ] {
            assert_eq!(code(gone, &options), expected, "{options:?}");
        }
    }
}
