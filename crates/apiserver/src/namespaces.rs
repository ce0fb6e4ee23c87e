//! The namespace controller: creates the initial namespaces, gives each namespace its default service account and the
//! CA bundle for its pods, keeps both current, and deletes the content of a terminating namespace before the namespace
//! itself.
//!
//! [`decide`] is the rule. The content of a namespace is read from the store directly, and no object can be created in
//! a terminating namespace (see [`Api`]): when the namespace is observed to be empty, it stays empty.

mod decide;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use wharf_model::panics::catch;

use crate::access::User;
use crate::kinds::{KINDS, Lookup};
use crate::rest::{
    Api, DeleteOptions, Propagation, Target, Verb, WriteOptions, core_kind, decode, key, prefix, target,
};
use crate::retry_loop::{RETRY_DELAY, RetryLoop, Work};
use crate::status::StatusError;
use crate::store::{Event, WatchEnd};
use decide::{Content, RootCa, Step, View, decide, root_ca, with_root_ca};

/// The namespaces that every cluster has.
const INITIAL_NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
/// The finalizer that holds a namespace until its content is deleted.
const NAMESPACE_FINALIZER: &str = "kubernetes";
/// The service account that each namespace has.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";
/// The ConfigMap from which pods read the CA bundle of the server.
const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";

/// Creates the objects that must exist before the first request.
pub(crate) async fn create_initial(api: &Api) -> Result<(), StatusError> {
    let namespaces = core_kind("namespaces")?;
    for name in INITIAL_NAMESPACES {
        if api.store().get(&key(namespaces, "", name)).is_none() {
            let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
            let target_object = target(Verb::Create, namespaces, "", "");
            ignore_already_exists(
                api.create(&User::admin(), &target_object, object, WriteOptions::INTERNAL, &mut Vec::new())
                    .await,
            )?;
        }
    }
    for namespace in api.objects().list(namespaces, "") {
        let name = text(&namespace, "/metadata/name");
        if decide::is_active(&namespace) && !has_defaults(api, name)? {
            ensure_defaults(api, name).await?;
        }
    }
    Ok(())
}

/// Creates the default objects of a new namespace before the create request returns, so that pods can follow at once.
/// On failure the controller creates them later, as for every namespace.
pub(crate) async fn create_defaults_for_new(api: &Api, stored: &[u8]) {
    let namespace = core_kind("namespaces").and_then(|kind| decode(kind, stored));
    if let Ok(namespace) = namespace {
        let _ = ensure_defaults(api, text(&namespace, "/metadata/name")).await;
    }
}

/// Whether the service account exists and the CA bundle is current.
fn has_defaults(api: &Api, namespace: &str) -> Result<bool, StatusError> {
    let account = key(core_kind("serviceaccounts")?, namespace, DEFAULT_SERVICE_ACCOUNT);
    Ok(api.store().get(&account).is_some() && root_ca_of(api, namespace)?.0 == RootCa::Current)
}

/// The state of the CA bundle, and its version.
fn root_ca_of(api: &Api, namespace: &str) -> Result<(RootCa, String), StatusError> {
    let found = api.objects().get(core_kind("configmaps")?, namespace, ROOT_CA_CONFIG_MAP);
    let version = found.as_ref().map(|found| text(found, "/metadata/resourceVersion").to_owned());
    Ok((root_ca(found.as_ref(), api.ca_certificate()), version.unwrap_or_default()))
}

async fn ensure_defaults(api: &Api, namespace: &str) -> Result<(), StatusError> {
    let account = json!({
        "kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": DEFAULT_SERVICE_ACCOUNT, "namespace": namespace},
    });
    create_if_absent(api, "serviceaccounts", namespace, account).await?;
    let (state, version) = root_ca_of(api, namespace)?;
    match state {
        RootCa::Current => return Ok(()),
        RootCa::Missing => {}
        RootCa::Outdated => {
            let config_map = target(Verb::Update, core_kind("configmaps")?, namespace, ROOT_CA_CONFIG_MAP);
            match change(api, &config_map, &|old| *old = with_root_ca(old, api.ca_certificate())).await {
                // It is immutable, or has no room for the data.
                Err(status_error) if status_error.code < 500 && status_error.code != 409 => {}
                changed => return changed,
            }
            let options = DeleteOptions { resource_version: Some(version), ..DeleteOptions::default() };
            let config_map = Target { verb: Verb::Delete, ..config_map };
            api.delete(&User::admin(), &config_map, &options).await?;
        }
    }
    let empty = json!({
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": ROOT_CA_CONFIG_MAP, "namespace": namespace},
    });
    create_if_absent(api, "configmaps", namespace, with_root_ca(&empty, api.ca_certificate())).await
}

/// Changes an existing object. Its absence is not an error.
async fn change(
    api: &Api,
    target_object: &Target,
    edit: &(dyn Fn(&mut Value) + Sync),
) -> Result<(), StatusError> {
    let mut mutate = |old: &Value, _: &mut Vec<String>| {
        let mut new = old.clone();
        edit(&mut new);
        Ok(new)
    };
    let options = WriteOptions::INTERNAL;
    match api.change(&User::admin(), target_object, options, &mut Vec::new(), &mut mutate).await {
        Err(status_error) if status_error.code != 404 => Err(status_error),
        _ => Ok(()),
    }
}

async fn create_if_absent(
    api: &Api,
    plural: &str,
    namespace: &str,
    object: Value,
) -> Result<(), StatusError> {
    let target_object = target(Verb::Create, core_kind(plural)?, namespace, "");
    ignore_already_exists(
        api.create(&User::admin(), &target_object, object, WriteOptions::INTERNAL, &mut Vec::new()).await,
    )
}

fn ignore_already_exists<T>(created: Result<T, StatusError>) -> Result<(), StatusError> {
    match created {
        Err(status_error) if status_error.reason == "AlreadyExists" => Ok(()),
        created => created.map(|_| ()),
    }
}

/// The component in the log and in the metric of panics.
const PANIC_COMPONENT: &str = "namespace-controller";

/// Runs the namespace controller until the store is closed. After a panic it starts from a new list.
pub(crate) async fn run(api: &Api) {
    while let Some(mut controller) = NamespaceController::start(api) {
        match catch(PANIC_COMPONENT, "events", controller.run()).await {
            // The watch fell behind the log: start from a new list.
            Ok(WatchEnd::Compacted) => {}
            Ok(WatchEnd::Closed) => return,
            Err(_) => sleep(RETRY_DELAY).await,
        }
    }
}

struct NamespaceController<'a> {
    api: &'a Api,
    /// Namespaces by name.
    retry_loop: RetryLoop<String>,
    /// When the default objects of a namespace were last repaired, within [`RETRY_DELAY`]. Another writer may undo each
    /// repair at once, and its write is the next event.
    repaired: BTreeMap<String, Instant>,
}

impl<'a> NamespaceController<'a> {
    fn start(api: &'a Api) -> Option<Self> {
        let namespaces = core_kind("namespaces").ok()?;
        loop {
            let page = api.store().list(&prefix(namespaces, ""), None, None, 0).ok()?;
            let Ok(watch) = api.store().watch("", page.revision) else { continue };
            let due = page
                .entries
                .iter()
                .filter_map(|entry| Some(entry.key.rsplit('/').next()?.to_owned()))
                .collect();
            return Some(Self { api, retry_loop: RetryLoop::new(watch, due), repaired: BTreeMap::new() });
        }
    }

    async fn run(&mut self) -> WatchEnd {
        loop {
            match self.retry_loop.next().await {
                Ok(Work::Event(event)) => self.retry_loop.enqueue(affected_namespace(&event)),
                Ok(Work::Reconcile(name)) => {
                    let done = catch(PANIC_COMPONENT, &name, self.reconcile(&name)).await;
                    if let Err(status_error) = done.unwrap_or_else(|_| Err(StatusError::panicked())) {
                        tracing::debug!(namespace = name, error = %status_error, "failed to reconcile namespace; retrying");
                        self.retry_loop.retry_later(name);
                    }
                }
                Err(end) => return end,
            }
        }
    }

    async fn reconcile(&mut self, name: &str) -> Result<(), StatusError> {
        let namespaces = core_kind("namespaces")?;
        let Some(namespace) = self.api.objects().get(namespaces, "", name) else { return Ok(()) };
        let content = if decide::is_active(&namespace) { Vec::new() } else { self.content(name)? };
        let view = View { namespace: &namespace, content, has_defaults: has_defaults(self.api, name)? };
        let admin = User::admin();
        match decide(&view, self.api.now()) {
            Step::Idle => Ok(()),
            Step::EnsureDefaults => {
                self.repaired.retain(|_, repaired| repaired.elapsed() < RETRY_DELAY);
                if self.repaired.contains_key(name) {
                    self.retry_loop.retry_later(name.to_owned());
                    return Ok(());
                }
                self.repaired.insert(name.to_owned(), Instant::now());
                ensure_defaults(self.api, name).await
            }
            Step::Delete(content) => {
                let options =
                    DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
                let all = content
                    .iter()
                    .map(|object| target(Verb::Delete, object.kind, name, &object.name))
                    .collect();
                self.api.delete_all(&admin, all, &options).await?;
                // The next reconcile reports the remaining objects in the status.
                self.retry_loop.enqueue([name.to_owned()]);
                Ok(())
            }
            Step::UpdateStatus(status) => {
                let mut target_object = target(Verb::Update, namespaces, "", name);
                target_object.subresource = "status".into();
                change(self.api, &target_object, &move |namespace| {
                    namespace["status"] = status.clone();
                })
                .await
            }
            Step::Finalize => {
                let mut target_object = target(Verb::Update, namespaces, "", name);
                target_object.subresource = "finalize".into();
                change(self.api, &target_object, &|namespace| {
                    if let Some(Value::Array(finalizers)) = namespace.pointer_mut("/spec/finalizers") {
                        finalizers.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
                    }
                })
                .await
            }
        }
    }

    /// All objects in the namespace.
    fn content(&self, namespace: &str) -> Result<Vec<Content>, StatusError> {
        let mut content = Vec::new();
        // Events of both API groups share one store prefix.
        for kind in
            KINDS.iter().filter(|kind| kind.namespaced && kind.is_stored() && kind.group != "events.k8s.io")
        {
            let page = self.api.store().list(&prefix(kind, namespace), None, None, 0);
            let page = page.map_err(|error| StatusError::expired(error.to_string()))?;
            for entry in page.entries {
                let object = decode(kind, &entry.value)?;
                content.push(Content::from_object(kind, &object));
            }
        }
        Ok(content)
    }
}

/// The namespace to reconcile after a write.
fn affected_namespace(event: &Event) -> Option<String> {
    let mut parts = event.key.splitn(4, '/');
    let (group, plural, namespace, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    match (group, plural) {
        ("", "namespaces") if !event.deleted => Some(name.into()),
        // A user may have changed it.
        ("", "configmaps") if name == ROOT_CA_CONFIG_MAP => Some(namespace.into()),
        // Content was deleted. An active namespace may need its default objects again.
        _ if event.deleted && !namespace.is_empty() => Some(namespace.into()),
        _ => None,
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}
