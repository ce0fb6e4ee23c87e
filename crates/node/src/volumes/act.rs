//! Does the one step it is given, and puts the outcome where the next view sees it.
//!
//! Before a driver is asked to put something up, the record of it is durable and the volume is uncertain in memory:
//! whatever becomes of the call, or of us, it will be taken down.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Status;
use wharf_cluster::now;
use wharf_model::{Key, Secret, Time};

use super::data::Data;
use super::decide::Step;
use super::disk::DiskError;
use super::failure::{Class, Doing, Failure, class_of, rpc_error};
use super::manager::{Manager, Seen};
use super::request::{Purpose, Secrets, Share, secret};
use super::world::{Device, Mode, Mount, Progress, Source, Volume, Want};
use crate::plugins::Plugin;
use wharf_model::csidriver::LifecycleMode;

mod attach;
mod down;
mod grow;
mod own;
mod tell;

/// Foreign mounts of a staged volume are looked for this often at least: somebody waits for it elsewhere.
const REFERENCED: Duration = Duration::from_secs(5);

/// Tokens of a pod's account by their audience, each as the server gave it.
type Tokens = serde_json::Map<String, Value>;

/// Why a step failed, and what that says of the volume.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) class: Class,
    pub(super) message: String,
    /// A pause of its own, at most.
    pub(super) soon: Option<Duration>,
}

impl Trouble {
    fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), soon: None }
    }

    /// The driver was not asked.
    fn transient(message: impl Into<String>) -> Self {
        Self::new(Class::Transient, message)
    }

    /// What the driver answered, without the secrets that it was given: it is told in events and logs.
    fn of_driver(status: &Status, secrets: &Secrets) -> Self {
        let mut message = rpc_error(status);
        for value in secrets.values().filter(|value| value.len() > 3) {
            message = message.replace(value.as_str(), "***");
        }
        Self::new(class_of(status.code()), message)
    }
}

impl From<DiskError> for Trouble {
    fn from(error: DiskError) -> Self {
        let soon = matches!(error, DiskError::Referenced { .. }).then_some(REFERENCED);
        Self { class: Class::Transient, message: error.to_string(), soon }
    }
}

impl Manager {
    /// Does one step for a volume.
    pub(super) async fn act(&self, unique: &str, seen: &Seen, step: &Step) {
        let (doing, pod, outcome) = match step {
            Step::Rest { .. } => return,
            Step::Refuse { pod, doing, why } => {
                (*doing, pod.as_str(), Err(Trouble::transient(why.to_string())))
            }
            Step::Verify => (Doing::Verify, "", self.verify(unique, seen).await),
            Step::Stage { pod } => (Doing::Stage, "", self.stage(unique, seen, pod).await),
            Step::Publish { pod } => (Doing::Publish, pod.as_str(), self.publish(unique, seen, pod).await),
            Step::Own { pod } => (Doing::Own, pod.as_str(), self.own(unique, seen, pod).await),
            Step::Expand { pod } => (Doing::Expand, pod.as_str(), self.expand(unique, seen, pod).await),
            Step::Ready { pod } => {
                self.ready(unique, seen, pod);
                return;
            }
            Step::Unpublish { pod } => {
                (Doing::Unpublish, pod.as_str(), self.unpublish(unique, seen, pod).await)
            }
            Step::Unstage => (Doing::Unstage, "", self.unstage(unique, seen).await),
            Step::Forget => {
                self.forget(unique);
                return;
            }
        };
        match outcome {
            Ok(()) => {
                tracing::debug!(volume = unique, pod, ?doing, "done");
                self.change(unique, |volume| {
                    volume.failures.remove(&(doing, pod.to_owned()));
                });
            }
            Err(trouble) => self.failed(unique, seen, doing, pod, trouble),
        }
    }

    /// Writes a failure down, and tells it.
    fn failed(&self, unique: &str, seen: &Seen, doing: Doing, pod: &str, trouble: Trouble) {
        let Trouble { class, message, soon } = trouble;
        tracing::warn!(volume = unique, pod, ?doing, ?class, error = message, "failed, trying again");
        self.tell_failure(&seen.volume, doing, pod, &message);
        let key = (doing, pod.to_owned());
        self.change(unique, |volume| {
            let mut failure = Failure::after(volume.failures.get(&key), class, message, now(), &self.backoff);
            if let Some(soon) = soon {
                failure.pause = failure.pause.min(soon);
            }
            volume.failures.insert(key, failure);
            if class != Class::Transient {
                // Whoever tries again asks again whether it is attached.
                volume.context = None;
            }
        });
        if !matches!(doing, Doing::Unpublish | Doing::Unstage) {
            let concerned = seen.volume.wants.keys().filter(|uid| pod.is_empty() || *uid == pod);
            self.round_failed(concerned);
        }
    }

    async fn stage(&self, unique: &str, seen: &Seen, pod: &str) -> Result<(), Trouble> {
        let (want, plugin) = (self.wanted(seen, pod)?, self.plugin(seen)?);
        let secrets = self.secrets(want, &Purpose::Stage, "NodeStageSecretRef").await?;
        let volume = &seen.volume;
        let staging = volume.staging(&self.parts.root);
        let record = record(volume, want);
        let (path, node, mode) = (staging.clone(), self.parts.node.clone(), volume.mode);
        let data_dir = self.parts.root.device_data(&volume.spec);
        self.disk
            .run(move |here| match (mode, path.parent()) {
                (Mode::Filesystem, Some(dir)) => here.record(dir, &record.staged(), Some(&path)),
                (Mode::Filesystem, None) => Ok(()),
                (Mode::Block, _) => here.record(&data_dir, &record.published(&node), Some(&path)),
            })
            .await?;
        let share = Share { volume, want, can: &plugin.capabilities, staging: Some(&staging) };
        let request = share.stage(secrets.clone());
        let before = volume.device;
        self.change(unique, |volume| {
            volume.se_linux.clone_from(&want.se_linux);
            if volume.device == Device::None {
                volume.device = Device::Uncertain { found: false };
            }
        });
        let client = plugin.client().with_deadline(self.settings.timeout);
        match client.node().node_stage_volume(request).await {
            Ok(_) => {
                self.change(unique, |volume| volume.device = Device::Staged);
                Ok(())
            }
            Err(status) => {
                let trouble = Trouble::of_driver(&status, &secrets);
                if trouble.class == Class::Final && !matches!(before, Device::Uncertain { found: true }) {
                    self.not_staged(unique, &seen.volume).await;
                }
                Err(trouble)
            }
        }
    }

    /// The driver says that it has not staged: its directory goes, unless something is mounted there after all.
    async fn not_staged(&self, unique: &str, volume: &Volume) {
        let (path, mode, spec) = (volume.staging(&self.parts.root), volume.mode, volume.spec.clone());
        let removed = self.disk.run(move |here| match mode {
            Mode::Filesystem => here.remove(&path),
            Mode::Block => here.remove_device(&spec),
        });
        match removed.await {
            Ok(()) => self.change(unique, |volume| volume.device = Device::None),
            Err(error) => {
                tracing::warn!(volume = unique, %error, "the driver refused to stage it, yet it is not gone")
            }
        }
    }

    async fn publish(&self, unique: &str, seen: &Seen, pod: &str) -> Result<(), Trouble> {
        let (want, plugin) = (self.wanted(seen, pod)?, self.plugin(seen)?);
        let volume = &seen.volume;
        let secrets = self.secrets(want, &Purpose::Publish, "NodePublishSecretRef").await?;
        let tokens = match volume.mode {
            Mode::Filesystem => self.tokens(seen, want).await?,
            Mode::Block => None,
        };
        let target = volume.target(&self.parts.root, pod);
        if volume.mode == Mode::Block && volume.device == Device::None {
            // The driver stages nothing, but a device's record is not in a share's directory: it goes as if it were staged.
            self.change(unique, |volume| volume.device = Device::Uncertain { found: false });
        }
        self.prepare(volume, want, pod).await?;
        let staging = volume.staging(&self.parts.root);
        let staging = (plugin.capabilities.stage_unstage && !volume.ephemeral).then_some(&*staging);
        let share = Share { volume, want, can: &plugin.capabilities, staging };
        let mut secret_words = secrets.clone();
        secret_words.extend(tokens.iter().flat_map(each_token));
        let tokens = tokens.map(|tokens| Value::Object(tokens).to_string());
        let request = share.publish(&target, seen.driver(), secrets, tokens);
        let before = volume.mounts.get(pod).cloned();
        self.change(unique, |volume| {
            let spec = volume.spec.clone();
            let uncertain =
                || Mount { progress: Progress::Uncertain, found: false, published: Time(0), spec };
            volume.mounts.entry(pod.to_owned()).or_insert_with(uncertain);
        });
        let client = plugin.client().with_deadline(self.settings.timeout);
        match client.node().node_publish_volume(request).await {
            Ok(_) => {
                self.published(volume, pod).await?;
                self.change(unique, |volume| {
                    if let Some(mount) = volume.mounts.get_mut(pod) {
                        mount.progress = mount.progress.max(Progress::Published);
                        mount.found = false;
                        mount.published = now();
                    }
                });
                Ok(())
            }
            Err(status) => {
                let trouble = Trouble::of_driver(&status, &secret_words);
                if trouble.class == Class::Final && before.is_none_or(|mount| may_be_gone(&mount)) {
                    self.not_published(unique, volume, pod).await;
                }
                Err(trouble)
            }
        }
    }

    /// What has to be on disk before a share is published.
    async fn prepare(&self, volume: &Volume, want: &Want, pod: &str) -> Result<(), Trouble> {
        let record = record(volume, want).published(&self.parts.node);
        let target = volume.target(&self.parts.root, pod);
        let (mode, data_dir) = (volume.mode, self.parts.root.device_data(&volume.spec));
        let prepared = self.disk.run(move |here| match (mode, target.parent()) {
            // The driver makes the target itself.
            (Mode::Filesystem, Some(dir)) => here.record(dir, &record, None),
            (Mode::Block, Some(dir)) => here.record(&data_dir, &record, Some(dir)),
            (_, None) => Ok(()),
        });
        Ok(prepared.await?)
    }

    /// A device is named in the pod's directory too.
    async fn published(&self, volume: &Volume, pod: &str) -> Result<(), Trouble> {
        if volume.mode == Mode::Filesystem {
            return Ok(());
        }
        let (spec, pod, target) = (volume.spec.clone(), pod.to_owned(), volume.target(&self.parts.root, pod));
        let linked = self.disk.run(move |here| here.link(&here.device_link(&spec, &pod), &target));
        Ok(linked.await?)
    }

    /// The driver says that it has not published: its directory goes, unless something is mounted there after all.
    async fn not_published(&self, unique: &str, volume: &Volume, pod: &str) {
        let (target, mode) = (volume.target(&self.parts.root, pod), volume.mode);
        let (spec, uid) = (volume.spec.clone(), pod.to_owned());
        let removed = self.disk.run(move |here| match mode {
            Mode::Filesystem => here.remove(&target),
            Mode::Block => here.remove_device_share(&spec, &uid),
        });
        match removed.await {
            Ok(()) => self.change(unique, |volume| {
                volume.mounts.remove(pod);
            }),
            Err(error) => {
                tracing::warn!(volume = unique, pod, %error, "the driver refused to publish it, yet it is not gone");
            }
        }
    }

    /// The pod can have it from now on.
    fn ready(&self, unique: &str, seen: &Seen, pod: &str) {
        self.change(unique, |volume| {
            if let Some(mount) = volume.mounts.get_mut(pod) {
                mount.progress = Progress::Mounted;
            }
            if let Some(Want { source: Source::Persistent { claim, .. }, .. }) = volume.wants.get(pod) {
                volume.size = volume.size.or(claim.status.capacity.storage);
            }
            let of_pod = |doing: &Doing, uid: &str| uid == pod && !matches!(doing, Doing::Unpublish);
            volume.failures.retain(|(doing, uid), _| !of_pod(doing, uid));
        });
        tracing::info!(volume = unique, pod, "mounted");
        self.tell_ready(&seen.volume, pod);
    }

    fn wanted<'a>(&self, seen: &'a Seen, pod: &str) -> Result<&'a Want, Trouble> {
        seen.volume.wants.get(pod).ok_or_else(|| Trouble::transient("the pod does not want it any more"))
    }

    fn plugin(&self, seen: &Seen) -> Result<Plugin, Trouble> {
        let driver = &seen.volume.driver;
        self.parts.plugins.get(driver).ok_or_else(|| {
            Trouble::transient(format!(
                "driver name {driver} not found in the list of registered CSI drivers"
            ))
        })
    }

    /// Read when they are needed, kept nowhere, so that a rotated one counts at once.
    async fn secrets(&self, want: &Want, purpose: &Purpose, what: &str) -> Result<Secrets, Trouble> {
        let Some(reference) = secret(want, purpose) else { return Ok(Secrets::new()) };
        let key = reference.key();
        let failed = |why: String| Trouble::transient(format!("fetching {what} {key} failed: {why}"));
        match self.parts.cluster.get::<Secret>(&key).await {
            Ok(Some(secret)) => secret.data.into_text().map_err(|error| failed(error.to_string())),
            Ok(None) => Err(failed(format!("secrets \"{}\" not found", key.name))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Of the pod's account, bound to the pod, one for each audience.
    async fn tokens(&self, seen: &Seen, want: &Want) -> Result<Option<Tokens>, Trouble> {
        let requests =
            seen.driver().object().map(|driver| &driver.spec.token_requests[..]).unwrap_or_default();
        if requests.is_empty() {
            return Ok(None);
        }
        let pod = &want.pod;
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let key = Key { namespace: pod.metadata.namespace.clone(), name: account.to_owned() };
        let mut tokens = Tokens::new();
        for request in requests {
            let body = token_request(&request.audience, request.expiration_seconds, want);
            let answer = self.parts.cluster.hand(&ACCOUNTS, &key, "token", &body).await;
            let failed = |why: &str| {
                Trouble::transient(format!("failed to get service account token attributes of {key}: {why}"))
            };
            let mut answer = answer.map_err(|error| failed(&error.to_string()))?;
            match answer.get_mut("status").map(Value::take) {
                Some(status @ Value::Object(_)) => tokens.insert(request.audience.clone(), status),
                _ => return Err(failed("the answer has no token")),
            };
        }
        Ok(Some(tokens))
    }
}

const ACCOUNTS: wharf_model::Api = wharf_model::Api {
    group: "",
    version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    scope: wharf_model::Scope::Namespaced,
};

fn token_request(audience: &str, expires: Option<i64>, want: &Want) -> Value {
    let audiences: Vec<&str> = [audience].into_iter().filter(|audience| !audience.is_empty()).collect();
    let meta = &want.pod.metadata;
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": expires,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid},
        },
    })
}

/// The tokens by themselves: a driver quotes the one that was refused, and not all that it was given. No key of a secret
/// has a space, so none is in the way.
fn each_token(tokens: &Tokens) -> Secrets {
    let word = |(audience, status): (&String, &Value)| {
        Some((format!("token for {audience}"), status["token"].as_str()?.to_owned()))
    };
    tokens.iter().filter_map(word).collect()
}

/// Any other error is final, but what an earlier life has left is proven by no refusal, and what the pod has, it has.
fn may_be_gone(mount: &Mount) -> bool {
    mount.progress == Progress::Uncertain && !mount.found
}

/// What is written down of a volume.
fn record(volume: &Volume, want: &Want) -> Data {
    let lifecycle = match (volume.mode, volume.ephemeral) {
        (Mode::Block, _) => None,
        (Mode::Filesystem, true) => Some(LifecycleMode::Ephemeral),
        (Mode::Filesystem, false) => Some(LifecycleMode::Persistent),
    };
    Data {
        driver: volume.driver.clone(),
        handle: volume.handle.clone(),
        spec: Some(volume.spec.clone()),
        lifecycle,
        se_linux: want.se_linux.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Tokens": bound to the pod; no audience is the server's own.
    #[test]
    fn token_requests() {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}});
        let inline = json!({"driver": "d"});
        let want = Want {
            pod: std::sync::Arc::new(serde_json::from_value(pod).unwrap()),
            names: ["v".to_owned()].into(),
            source: Source::Inline(serde_json::from_value(inline).unwrap()),
            read_only: false,
            se_linux: None,
        };
        let request = token_request("vault", Some(600), &want);
        assert_eq!(
            request["spec"],
            json!({
                "audiences": ["vault"], "expirationSeconds": 600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            })
        );
        assert_eq!(token_request("", None, &want)["spec"]["audiences"], json!([]));
    }

    /// A driver may quote what it was given; events are read by many.
    #[test]
    fn no_secret_is_told() {
        let secrets = Secrets::from([("token".to_owned(), "s3cr3t".to_owned())]);
        let until = "2026-01-01T00:00:00Z";
        let tokens = Tokens::from_iter([
            (String::new(), json!({"token": "eyJh.e30.c2ln", "expirationTimestamp": until})),
            ("vault".to_owned(), json!({"token": "eyJi.e30.c2ln", "expirationTimestamp": until})),
        ]);
        for (given, quoted, told) in [
            (secrets, "s3cr3t", "***"),
            (each_token(&tokens), "eyJh.e30.c2ln", "***"),
            (each_token(&tokens), r#"{"vault":{"token":"eyJi.e30.c2ln"}}"#, r#"{"vault":{"token":"***"}}"#),
        ] {
            let trouble =
                Trouble::of_driver(&Status::internal(format!("login with {quoted} failed")), &given);
            assert_eq!(
                trouble.message,
                format!("rpc error: code = Internal desc = login with {told} failed")
            );
            assert_eq!(trouble.class, Class::Final);
        }
    }

    /// kubernetes.md 1.8 "Final": only what was uncertain in this life is proven gone by a final error.
    #[test]
    fn what_a_final_error_proves() {
        let mount = |progress, found| Mount { progress, found, published: Time(0), spec: String::new() };
        for (progress, found, gone) in [
            (Progress::Uncertain, false, true),
            (Progress::Uncertain, true, false),
            (Progress::Published, false, false),
            (Progress::Mounted, false, false),
        ] {
            assert_eq!(may_be_gone(&mount(progress, found)), gone, "{progress:?} {found}");
        }
    }
}
