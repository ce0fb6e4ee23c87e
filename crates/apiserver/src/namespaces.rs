//! The life of namespaces: those that every cluster has are made at the start, each gets its service account and the
//! certificate by which its pods know the server, and the content of one that ends is deleted before it goes.
//!
//! [`decide`] is the rule. What a namespace holds is read from the store itself, and nothing can come into one that
//! ends (see [`Api`]): when it is seen to be empty, it is.

mod decide;

use serde_json::{Value, json};

use crate::access::User;
use crate::kinds::{KINDS, Lookup};
use crate::rest::{
    Api, DeleteOptions, Propagation, Verb, WriteOptions, core_kind, decode, key, prefix, target,
};
use crate::rounds::{Rounds, Turn};
use crate::status::Refusal;
use crate::store::{Event, WatchEnd};
use decide::{Content, Step, View, decide};

/// Those that every cluster has.
const FIRST: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
/// What keeps a namespace until its content is gone.
const FINALIZER: &str = "kubernetes";
/// The account that each namespace has.
const ACCOUNT: &str = "default";
/// The config map in which pods find the server's authority.
const AUTHORITY: &str = "kube-root-ca.crt";

/// What upstream's says of itself.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

/// Makes what must be there before the first request.
pub(crate) async fn make_first(api: &Api) -> Result<(), Refusal> {
    let namespaces = core_kind("namespaces")?;
    for name in FIRST {
        if api.store().get(&key(namespaces, "", name)).is_none() {
            let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
            let one = target(Verb::Create, namespaces, "", "");
            there_is_fine(
                api.create(&User::admin(), &one, object, WriteOptions::INTERNAL, &mut Vec::new()).await,
            )?;
        }
    }
    for namespace in api.objects().list(namespaces, "") {
        let name = text(&namespace, "/metadata/name");
        if decide::is_active(&namespace) && !is_furnished(api, name)? {
            make_furniture(api, name).await?;
        }
    }
    Ok(())
}

/// Gives a new namespace what pods need before its maker is answered, so that one can follow at once. If that fails, it
/// is done a little later, as for every namespace.
pub(crate) async fn furnish(api: &Api, stored: &[u8]) {
    let namespace = core_kind("namespaces").and_then(|kind| decode(kind, stored));
    if let Ok(namespace) = namespace {
        let _ = make_furniture(api, text(&namespace, "/metadata/name")).await;
    }
}

/// Whether the account and the authority are there.
fn is_furnished(api: &Api, namespace: &str) -> Result<bool, Refusal> {
    let has = |plural: &str, name: &str| {
        Ok::<_, Refusal>(api.store().get(&key(core_kind(plural)?, namespace, name)).is_some())
    };
    Ok(has("serviceaccounts", ACCOUNT)? && (api.authority().is_empty() || has("configmaps", AUTHORITY)?))
}

async fn make_furniture(api: &Api, namespace: &str) -> Result<(), Refusal> {
    let account = json!({
        "kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": ACCOUNT, "namespace": namespace},
    });
    make(api, "serviceaccounts", namespace, account).await?;
    if api.authority().is_empty() {
        return Ok(());
    }
    let authority = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {
            "name": AUTHORITY, "namespace": namespace, "annotations": {"kubernetes.io/description": DESCRIPTION},
        },
        "data": {"ca.crt": api.authority()},
    });
    make(api, "configmaps", namespace, authority).await
}

async fn make(api: &Api, plural: &str, namespace: &str, object: Value) -> Result<(), Refusal> {
    let one = target(Verb::Create, core_kind(plural)?, namespace, "");
    there_is_fine(api.create(&User::admin(), &one, object, WriteOptions::INTERNAL, &mut Vec::new()).await)
}

fn there_is_fine<T>(made: Result<T, Refusal>) -> Result<(), Refusal> {
    match made {
        Err(refusal) if refusal.reason == "AlreadyExists" => Ok(()),
        made => made.map(|_| ()),
    }
}

/// Looks after namespaces until the store is closed.
pub(crate) async fn run(api: &Api) {
    while let Some(mut keeper) = Keeper::start(api) {
        match keeper.run().await {
            // Slower than the log is long: look at all again.
            WatchEnd::Compacted => {}
            WatchEnd::Closed => return,
        }
    }
}

struct Keeper<'a> {
    api: &'a Api,
    /// By their names.
    rounds: Rounds<String>,
}

impl<'a> Keeper<'a> {
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
            return Some(Self { api, rounds: Rounds::new(watch, due) });
        }
    }

    async fn run(&mut self) -> WatchEnd {
        loop {
            match self.rounds.next().await {
                Ok(Turn::Event(event)) => self.rounds.add(concerned(&event)),
                Ok(Turn::LookAt(name)) => {
                    if let Err(refusal) = self.look_at(&name).await {
                        tracing::debug!(namespace = name, %refusal, "left for later by the keeper of namespaces");
                        self.rounds.rest(name);
                    }
                }
                Err(end) => return end,
            }
        }
    }

    async fn look_at(&mut self, name: &str) -> Result<(), Refusal> {
        let namespaces = core_kind("namespaces")?;
        let Some(namespace) = self.api.objects().get(namespaces, "", name) else { return Ok(()) };
        let content = if decide::is_active(&namespace) { Vec::new() } else { self.content(name)? };
        let view = View { namespace: &namespace, content, furnished: is_furnished(self.api, name)? };
        let admin = User::admin();
        match decide(&view, self.api.now()) {
            Step::Nothing => Ok(()),
            Step::Furnish => make_furniture(self.api, name).await,
            Step::Delete(content) => {
                let options =
                    DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
                let all = content.iter().map(|it| target(Verb::Delete, it.kind, name, &it.name)).collect();
                self.api.delete_each(&admin, all, &options).await?;
                // What stays for now is told in its status at the next look.
                self.rounds.add([name.to_owned()]);
                Ok(())
            }
            Step::Report(status) => {
                let mut one = target(Verb::Update, namespaces, "", name);
                one.subresource = "status".into();
                self.change(&one, &move |namespace| {
                    namespace["status"] = status.clone();
                })
                .await
            }
            Step::Finalize => {
                let mut one = target(Verb::Update, namespaces, "", name);
                one.subresource = "finalize".into();
                self.change(&one, &|namespace| {
                    if let Some(Value::Array(finalizers)) = namespace.pointer_mut("/spec/finalizers") {
                        finalizers.retain(|finalizer| finalizer != FINALIZER);
                    }
                })
                .await
            }
        }
    }

    async fn change(
        &self,
        one: &crate::rest::Target,
        edit: &(dyn Fn(&mut Value) + Sync),
    ) -> Result<(), Refusal> {
        let mut make = |old: &Value, _: &mut Vec<String>| {
            let mut new = old.clone();
            edit(&mut new);
            Ok(new)
        };
        let how = WriteOptions::INTERNAL;
        match self.api.change(&User::admin(), one, how, &mut Vec::new(), &mut make).await {
            Err(refusal) if refusal.code != 404 => Err(refusal),
            _ => Ok(()),
        }
    }

    /// All that is in the namespace.
    fn content(&self, namespace: &str) -> Result<Vec<Content>, Refusal> {
        let mut content = Vec::new();
        // Events are in one place for both of their groups.
        for kind in
            KINDS.iter().filter(|kind| kind.namespaced && kind.is_stored() && kind.group != "events.k8s.io")
        {
            let page = self.api.store().list(&prefix(kind, namespace), None, None, 0);
            let page = page.map_err(|error| Refusal::expired(error.to_string()))?;
            for entry in page.entries {
                let object = decode(kind, &entry.value)?;
                content.push(Content::of(kind, &object));
            }
        }
        Ok(content)
    }
}

/// The namespace that has to be looked at after a write.
fn concerned(event: &Event) -> Option<String> {
    let mut parts = event.key.splitn(4, '/');
    let (group, plural, namespace, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    match (group, plural) {
        ("", "namespaces") if !event.deleted => Some(name.into()),
        // Something less in it; a namespace that does not end has what is its own looked after.
        _ if event.deleted && !namespace.is_empty() => Some(namespace.into()),
        _ => None,
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}
