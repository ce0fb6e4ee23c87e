//! Dispatches a request to its verb.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::negotiate::{self, Shape};
use super::options::DeleteOptions;
use super::query::Query;
use super::response::{self, ApiResponse, OutputFormat};
use super::route::{NonResourceUrl, Route, Target, Verb, route};
use super::{Api, Body, attributes, body, encode, options};
use crate::access::{self, Attributes, User};
use crate::discovery;
use crate::kinds::Kind;
use crate::namespaces;
use crate::schema;
use crate::select::FieldSelector;
use crate::status::StatusError;

impl Api {
    pub(super) async fn dispatch(
        &self,
        parts: Parts,
        body: Body,
        query: &Query,
        pretty: bool,
        user: &User,
    ) -> Result<Response<Body>, StatusError> {
        match route(&parts.method, parts.uri.path(), query)? {
            Route::NonResource(non_resource) => {
                let verb = parts.method.as_str().to_ascii_lowercase();
                let attrs = Attributes { verb: &verb, path: parts.uri.path(), ..Attributes::default() };
                access::authorize(user, &attrs, &self.objects())
                    .map_err(|reason| attrs.forbidden(&reason))?;
                let format = OutputFormat { shape: Shape::Object, pretty, now: self.now() };
                response::build(self.non_resource(&non_resource, &parts, query)?, None, format, &[])
            }
            Route::Resource(target) => {
                self.authorize(user, &target, query)?;
                let shape = negotiate::shape(&parts.headers, query)?;
                let format = OutputFormat { shape, pretty, now: self.now() };
                let mut warnings = Vec::new();
                let kind = target.kind;
                let response = if matches!(target.subresource.as_str(), "log" | "exec") {
                    self.streams(&target, query, parts).await?
                } else {
                    let bytes = match target.verb {
                        Verb::Get | Verb::List | Verb::Watch => Bytes::new(),
                        _ => body::read(body).await?,
                    };
                    self.act(user, &target, &parts, &bytes, query, format, &mut warnings).await?
                };
                warnings.dedup();
                response::build(response, Some(kind), format, &warnings)
            }
        }
    }

    /// Checks that the user is allowed the request. A list of one name is authorized for that name.
    fn authorize(&self, user: &User, target: &Target, query: &Query) -> Result<(), StatusError> {
        let fields = match target.verb {
            Verb::List | Verb::Watch | Verb::DeleteCollection => query.text("fieldSelector"),
            _ => "",
        };
        let selector = FieldSelector::parse(fields)?;
        let mut attrs = attributes(target, fields);
        if let Some(name) = selector.requires_exact_match("metadata.name") {
            attrs.name = name;
        }
        access::authorize(user, &attrs, &self.objects()).map_err(|reason| attrs.forbidden(&reason))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one caller, and each argument is a distinct part of the request"
    )]
    async fn act(
        &self,
        user: &User,
        target: &Target,
        parts: &Parts,
        bytes: &Bytes,
        query: &Query,
        format: OutputFormat,
        warnings: &mut Vec<String>,
    ) -> Result<ApiResponse, StatusError> {
        let kind = target.kind;
        match target.verb {
            Verb::Get => self.get(target, query),
            Verb::List => self.list(target, query, &options::list(query)?, format).await,
            Verb::Watch => self.watch(target, query, &options::watch(query)?, format),
            Verb::Create => {
                let bytes = &body::json(&parts.headers, kind, bytes)?;
                let options = options::write(query, "CreateOptions")?;
                let expected_type = match target.subresource.as_str() {
                    "" => (kind.group, kind.version, kind.kind),
                    subresource => {
                        let subresource = kind
                            .subresource(subresource)
                            .ok_or_else(|| super::body::no_schema(subresource))?;
                        (subresource.group, subresource.version, subresource.kind)
                    }
                };
                let object = body::typed(
                    expected_type.0,
                    expected_type.1,
                    expected_type.2,
                    bytes,
                    options.fields,
                    warnings,
                )?;
                match (target.subresource.as_str(), kind.is_stored()) {
                    ("", true) => {
                        let stored = self.create(user, target, object, options, warnings).await?;
                        if kind.group.is_empty() && kind.plural == "namespaces" && !options.dry_run {
                            namespaces::create_defaults_for_new(self, &stored).await;
                        }
                        Ok(ApiResponse::Object(201, stored))
                    }
                    ("", false) => self.create_unstored(user, target, object, options).await,
                    ("binding", _) => self.bind(target, &object, options).await,
                    ("eviction", _) => self.evict(user, target, &object, options).await,
                    ("token", _) => {
                        let (namespace, name) = (&target.namespace, &target.name);
                        let objects = self.objects();
                        // A node only gets tokens for its own pods, and the body names the pod.
                        access::restrict_node(user, &attributes(target, ""), Some(&object), None, &objects)?;
                        let mut token =
                            self.access().token_request(namespace, name, object, &objects, self.now())?;
                        super::meta::set(&mut token, "uid", super::random::uid().into());
                        Ok(ApiResponse::Json(201, token))
                    }
                    (subresource, _) => Err(super::body::no_schema(subresource)),
                }
            }
            Verb::Update => {
                let bytes = &body::json(&parts.headers, kind, bytes)?;
                let options = options::write(query, "UpdateOptions")?;
                let object = body::object(kind, bytes, options.fields, warnings)?;
                let updated = self.update(user, target, object, options, warnings).await?;
                Ok(ApiResponse::Object(if updated.created { 201 } else { 200 }, updated.stored))
            }
            Verb::Patch => {
                let options = options::write(query, "PatchOptions")?;
                let media = negotiate::content_type(&parts.headers);
                Ok(ApiResponse::Object(
                    200,
                    self.patch(user, target, &media, bytes, options, warnings).await?,
                ))
            }
            Verb::Delete => {
                let options = delete_options(kind, parts, bytes, query)?;
                self.delete(user, target, &options).await
            }
            Verb::DeleteCollection => {
                let options = delete_options(kind, parts, bytes, query)?;
                self.delete_collection(user, target, query, &options, format).await
            }
        }
    }

    fn get(&self, target: &Target, query: &Query) -> Result<ApiResponse, StatusError> {
        if let Some(revision) = options::revision(query)? {
            self.has_reached(revision)?;
        }
        let key = encode::key(target.kind, &target.namespace, &target.name);
        match self.store().get(&key) {
            Some(entry) => Ok(ApiResponse::Object(200, entry.value)),
            None => Err(StatusError::not_found(target.kind.resource(), &target.name)),
        }
    }

    /// Creates an object of a kind that is not stored: a review, whose result is its status, or a binding.
    async fn create_unstored(
        &self,
        user: &User,
        target: &Target,
        mut create_unstored: serde_json::Value,
        options: options::WriteOptions,
    ) -> Result<ApiResponse, StatusError> {
        super::create::set_namespace(&mut create_unstored, target)?;
        let objects = self.objects();
        let response = match target.kind.kind {
            "Binding" => {
                let name = super::meta::name(&create_unstored).to_owned();
                let pods = super::core_kind("pods")?;
                let pod = Target { kind: pods, name, ..target.clone() };
                return self.bind(&pod, &create_unstored, options).await;
            }
            "TokenReview" => self.access().token_review(create_unstored, &objects, self.now())?,
            "SelfSubjectReview" => {
                super::meta::set(&mut create_unstored, "creationTimestamp", self.now().to_string().into());
                access::self_subject_review(create_unstored, user)
            }
            "SubjectAccessReview" => access::subject_access_review(create_unstored, &objects)?,
            "LocalSubjectAccessReview" => {
                access::local_subject_access_review(create_unstored, &target.namespace, &objects)?
            }
            "SelfSubjectAccessReview" => access::self_subject_access_review(create_unstored, user, &objects)?,
            "SelfSubjectRulesReview" => access::self_subject_rules_review(create_unstored, user)?,
            other => return Err(super::body::no_schema(other)),
        };
        Ok(ApiResponse::Json(201, response))
    }

    fn non_resource(
        &self,
        non_resource: &NonResourceUrl,
        parts: &Parts,
        query: &Query,
    ) -> Result<ApiResponse, StatusError> {
        let wants_aggregated =
            || Ok::<_, StatusError>(negotiate::discovery_shape(&parts.headers)? == Shape::Discovery);
        let not_found = || StatusError::new(404, "", "404 page not found");
        Ok(match non_resource {
            NonResourceUrl::CoreVersions if wants_aggregated()? => {
                ApiResponse::Raw(discovery::AGGREGATED_MEDIA_TYPE, discovery::aggregated(true))
            }
            NonResourceUrl::CoreVersions => ApiResponse::Json(200, discovery::core_versions()),
            NonResourceUrl::Groups if wants_aggregated()? => {
                ApiResponse::Raw(discovery::AGGREGATED_MEDIA_TYPE, discovery::aggregated(false))
            }
            NonResourceUrl::Groups => ApiResponse::Json(200, discovery::groups()),
            NonResourceUrl::Group(group) => {
                ApiResponse::Json(200, discovery::group(group).ok_or_else(not_found)?)
            }
            NonResourceUrl::Resources { group, version } => {
                ApiResponse::Json(200, discovery::resources(group, version).ok_or_else(not_found)?)
            }
            NonResourceUrl::Root => ApiResponse::Json(200, discovery::paths()),
            NonResourceUrl::Version => ApiResponse::Json(200, discovery::version()),
            NonResourceUrl::OpenApiIndex => ApiResponse::Json(200, schema::openapi_v3_index()),
            NonResourceUrl::OpenApi(of) => {
                ApiResponse::Raw("application/json", schema::openapi_v3(of).ok_or_else(not_found)?)
            }
            NonResourceUrl::OpenApiV2 => ApiResponse::Raw("application/json", schema::openapi_v2()),
            NonResourceUrl::OpenId => {
                ApiResponse::Json(200, self.access().openid_configuration(&self.options().base_url))
            }
            NonResourceUrl::Jwks => ApiResponse::Json(200, self.access().jwks()),
            NonResourceUrl::Metrics => {
                let metrics = self.watches().metrics();
                ApiResponse::Raw("text/plain; version=0.0.4; charset=utf-8", metrics.into())
            }
            NonResourceUrl::Health(of) => {
                self.health(of, query.flag("verbose") == Some(true) && parts.method == Method::GET)?
            }
        })
    }

    fn health(&self, of: &'static str, verbose: bool) -> Result<ApiResponse, StatusError> {
        if of == "readyz" && !self.is_ready() {
            return Err(StatusError::new(
                500,
                "InternalError",
                "readyz check failed: the initial namespaces do not exist yet",
            ));
        }
        let text =
            if verbose { format!("[+]ping ok\n[+]store ok\n{of} check passed\n") } else { "ok".into() };
        Ok(ApiResponse::Raw("text/plain; charset=utf-8", text.into()))
    }
}

fn delete_options(
    kind: &Kind,
    parts: &Parts,
    bytes: &Bytes,
    query: &Query,
) -> Result<DeleteOptions, StatusError> {
    if bytes.is_empty() {
        return options::delete(bytes, query);
    }
    options::delete(&body::json(&parts.headers, kind, bytes)?, query)
}
