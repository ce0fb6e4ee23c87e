//! From a request to the verb that does it.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::answer::{self, Answer, Look};
use super::negotiate::{self, Shape};
use super::options::DeleteOptions;
use super::query::Query;
use super::route::{Page, Route, Target, Verb, route};
use super::{Api, Body, attributes, body, encode, options};
use crate::access::{self, Attributes, User};
use crate::discovery;
use crate::kinds::Kind;
use crate::namespaces;
use crate::schema;
use crate::select::FieldSelector;
use crate::status::Refusal;

impl Api {
    pub(super) async fn dispatch(
        &self,
        parts: Parts,
        body: Body,
        query: &Query,
        pretty: bool,
        user: &User,
    ) -> Result<Response<Body>, Refusal> {
        match route(&parts.method, parts.uri.path(), query)? {
            Route::Page(page) => {
                let verb = parts.method.as_str().to_ascii_lowercase();
                let asked = Attributes { verb: &verb, path: parts.uri.path(), ..Attributes::default() };
                access::authorize(user, &asked, &self.objects()).map_err(|why| asked.forbidden(&why))?;
                let look = Look { shape: Shape::Object, pretty, now: self.now() };
                answer::response(self.page(&page, &parts, query)?, None, look, &[])
            }
            Route::Resource(target) => {
                self.may(user, &target, query)?;
                let shape = negotiate::shape(&parts.headers, query)?;
                let look = Look { shape, pretty, now: self.now() };
                let mut warnings = Vec::new();
                let kind = target.kind;
                let answer = if matches!(target.subresource.as_str(), "log" | "exec") {
                    self.streams(&target, query, parts).await?
                } else {
                    let bytes = match target.verb {
                        Verb::Get | Verb::List | Verb::Watch => Bytes::new(),
                        _ => body::read(body).await?,
                    };
                    self.act(user, &target, &parts, &bytes, query, look, &mut warnings).await?
                };
                warnings.dedup();
                answer::response(answer, Some(kind), look, &warnings)
            }
        }
    }

    /// That the user may. A list of one name is a request for that name.
    fn may(&self, user: &User, target: &Target, query: &Query) -> Result<(), Refusal> {
        let fields = match target.verb {
            Verb::List | Verb::Watch | Verb::DeleteCollection => query.text("fieldSelector"),
            _ => "",
        };
        let selector = FieldSelector::parse(fields)?;
        let mut asked = attributes(target, fields);
        if let Some(name) = selector.exact("metadata.name") {
            asked.name = name;
        }
        access::authorize(user, &asked, &self.objects()).map_err(|why| asked.forbidden(&why))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "a request has that many parts, and this is where they meet"
    )]
    async fn act(
        &self,
        user: &User,
        target: &Target,
        parts: &Parts,
        bytes: &Bytes,
        query: &Query,
        look: Look,
        warnings: &mut Vec<String>,
    ) -> Result<Answer, Refusal> {
        let kind = target.kind;
        match target.verb {
            Verb::Get => self.get(target, query),
            Verb::List => self.list(target, query, &options::list(query)?, look).await,
            Verb::Watch => self.watch(target, query, &options::watch(query)?, look),
            Verb::Create => {
                let bytes = &body::json(&parts.headers, kind, bytes)?;
                let how = options::write(query, "CreateOptions")?;
                let sent = match target.subresource.as_str() {
                    "" => (kind.group, kind.version, kind.kind),
                    below => {
                        let below = kind.subresource(below).ok_or_else(|| super::body::no_schema(below))?;
                        (below.group, below.version, below.kind)
                    }
                };
                let object = body::typed(sent.0, sent.1, sent.2, bytes, how.fields, warnings)?;
                match (target.subresource.as_str(), kind.is_stored()) {
                    ("", true) => {
                        let stored = self.create(user, target, object, how, warnings).await?;
                        if kind.group.is_empty() && kind.plural == "namespaces" && !how.dry_run {
                            namespaces::furnish(self, &stored).await;
                        }
                        Ok(Answer::Object(201, stored))
                    }
                    ("", false) => self.question(user, target, object, how).await,
                    ("binding", _) => self.bind(target, &object, how).await,
                    ("eviction", _) => self.evict(user, target, &object, how).await,
                    ("token", _) => {
                        let (namespace, name) = (&target.namespace, &target.name);
                        let objects = self.objects();
                        // A node gets tokens of its own pods alone, and which pod is said in the body.
                        access::restrict_node(user, &attributes(target, ""), Some(&object), None, &objects)?;
                        let mut token =
                            self.access().token_request(namespace, name, object, &objects, self.now())?;
                        super::meta::set(&mut token, "uid", super::random::uid().into());
                        Ok(Answer::Json(201, token))
                    }
                    (below, _) => Err(super::body::no_schema(below)),
                }
            }
            Verb::Update => {
                let bytes = &body::json(&parts.headers, kind, bytes)?;
                let how = options::write(query, "UpdateOptions")?;
                let object = body::object(kind, bytes, how.fields, warnings)?;
                let updated = self.update(user, target, object, how, warnings).await?;
                Ok(Answer::Object(if updated.created { 201 } else { 200 }, updated.stored))
            }
            Verb::Patch => {
                let how = options::write(query, "PatchOptions")?;
                let media = negotiate::content_type(&parts.headers);
                Ok(Answer::Object(200, self.patch(user, target, &media, bytes, how, warnings).await?))
            }
            Verb::Delete => {
                let how = delete_options(kind, parts, bytes, query)?;
                self.delete(user, target, &how).await
            }
            Verb::DeleteCollection => {
                let how = delete_options(kind, parts, bytes, query)?;
                self.delete_collection(user, target, query, &how, look).await
            }
        }
    }

    fn get(&self, target: &Target, query: &Query) -> Result<Answer, Refusal> {
        if let Some(revision) = options::revision(query)? {
            self.has_reached(revision)?;
        }
        let key = encode::key(target.kind, &target.namespace, &target.name);
        match self.store().get(&key) {
            Some(entry) => Ok(Answer::Object(200, entry.value)),
            None => Err(Refusal::not_found(target.kind.resource(), &target.name)),
        }
    }

    /// A kind that is not kept: a question, answered in its status.
    async fn question(
        &self,
        user: &User,
        target: &Target,
        mut question: serde_json::Value,
        how: options::WriteOptions,
    ) -> Result<Answer, Refusal> {
        super::create::place(&mut question, target)?;
        let objects = self.objects();
        let answer = match target.kind.kind {
            "Binding" => {
                let name = super::meta::name(&question).to_owned();
                let pods = super::core_kind("pods")?;
                let pod = Target { kind: pods, name, ..target.clone() };
                return self.bind(&pod, &question, how).await;
            }
            "TokenReview" => self.access().token_review(question, &objects, self.now())?,
            "SelfSubjectReview" => {
                super::meta::set(&mut question, "creationTimestamp", self.now().to_string().into());
                access::self_subject_review(question, user)
            }
            "SubjectAccessReview" => access::subject_access_review(question, &objects)?,
            "LocalSubjectAccessReview" => {
                access::local_subject_access_review(question, &target.namespace, &objects)?
            }
            "SelfSubjectAccessReview" => access::self_subject_access_review(question, user, &objects)?,
            "SelfSubjectRulesReview" => access::self_subject_rules_review(question, user)?,
            other => return Err(super::body::no_schema(other)),
        };
        Ok(Answer::Json(201, answer))
    }

    fn page(&self, page: &Page, parts: &Parts, query: &Query) -> Result<Answer, Refusal> {
        let wants_all = || Ok::<_, Refusal>(negotiate::discovery_shape(&parts.headers)? == Shape::Discovery);
        let nowhere = || Refusal::new(404, "", "404 page not found");
        Ok(match page {
            Page::CoreVersions if wants_all()? => Answer::Raw(discovery::AGGREGATED, discovery::all(true)),
            Page::CoreVersions => Answer::Json(200, discovery::core_versions()),
            Page::Groups if wants_all()? => Answer::Raw(discovery::AGGREGATED, discovery::all(false)),
            Page::Groups => Answer::Json(200, discovery::groups()),
            Page::Group(group) => Answer::Json(200, discovery::group(group).ok_or_else(nowhere)?),
            Page::Resources { group, version } => {
                Answer::Json(200, discovery::resources(group, version).ok_or_else(nowhere)?)
            }
            Page::Root => Answer::Json(200, discovery::paths()),
            Page::Version => Answer::Json(200, discovery::version()),
            Page::OpenApiIndex => Answer::Json(200, schema::openapi_v3_index()),
            Page::OpenApi(of) => Answer::Raw("application/json", schema::openapi_v3(of).ok_or_else(nowhere)?),
            Page::OpenApiV2 => Answer::Raw("application/json", schema::openapi_v2()),
            Page::OpenId => Answer::Json(200, self.access().openid_configuration(&self.options().base)),
            Page::Jwks => Answer::Json(200, self.access().jwks()),
            Page::Health(of) => {
                self.health(of, query.flag("verbose") == Some(true) && parts.method == Method::GET)?
            }
        })
    }

    fn health(&self, of: &'static str, verbose: bool) -> Result<Answer, Refusal> {
        if of == "readyz" && !self.is_ready() {
            return Err(Refusal::new(
                500,
                "InternalError",
                "readyz check failed: the first namespaces are not made yet",
            ));
        }
        let words =
            if verbose { format!("[+]ping ok\n[+]store ok\n{of} check passed\n") } else { "ok".into() };
        Ok(Answer::Raw("text/plain; charset=utf-8", words.into()))
    }
}

fn delete_options(
    kind: &Kind,
    parts: &Parts,
    bytes: &Bytes,
    query: &Query,
) -> Result<DeleteOptions, Refusal> {
    if bytes.is_empty() {
        return options::delete(bytes, query);
    }
    options::delete(&body::json(&parts.headers, kind, bytes)?, query)
}
