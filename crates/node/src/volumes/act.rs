//! Executes one step and stores its outcome in the world, where the next decision reads it.
//!
//! Before a driver is called to stage or publish, the record is durable and the volume is marked uncertain in memory:
//! whatever happens to the call or to this process, the volume will be cleaned up.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Status;
use wharf_cluster::{monotonic, now};
use wharf_csi::go_error_text;
use wharf_model::secret::redact;
use wharf_model::{Key, Secret};

use super::data::Data;
use super::decide::Step;
use super::disk::DiskError;
use super::failure::{Class, Failure, Operation, class_of};
use super::manager::{Inputs, Manager};
use super::request::{MountCall, Purpose, Secrets, secret};
use super::world::{DesiredMount, Device, Mode, Mount, Progress, Source, Volume};
use crate::plugins::Plugin;
use wharf_model::csidriver::VolumeLifecycleMode;

mod attach;
mod events;
mod node_expand;
mod set_ownership;
mod teardown;

/// Minimum frequency of checks for other mounts of a staged volume: another node waits for it to be unstaged.
const REFERENCED_RETRY: Duration = Duration::from_secs(5);

/// Tokens of a pod's service account by audience, as returned by the API server.
type Tokens = serde_json::Map<String, Value>;

/// Why a step failed, and the resulting certainty about the volume.
#[derive(Debug)]
pub(super) struct StepError {
    pub(super) class: Class,
    pub(super) message: String,
    /// Upper bound of the retry delay, if this failure has one.
    pub(super) max_delay: Option<Duration>,
}

impl StepError {
    fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), max_delay: None }
    }

    /// A failure before the driver was called.
    fn transient(message: impl Into<String>) -> Self {
        Self::new(Class::Transient, message)
    }

    /// The driver's error without the secrets it was given: it appears in events and logs.
    fn of_driver(status: &Status, secrets: &Secrets) -> Self {
        let message = redact(status.message(), secrets.values());
        Self::new(class_of(status.code()), go_error_text(status.code(), &message))
    }
}

impl From<DiskError> for StepError {
    fn from(error: DiskError) -> Self {
        let max_delay = matches!(error, DiskError::Referenced { .. }).then_some(REFERENCED_RETRY);
        Self { class: Class::Transient, message: error.to_string(), max_delay }
    }
}

impl Manager {
    /// Executes one step for a volume.
    pub(super) async fn act(&self, unique: &str, inputs: &Inputs, step: &Step) {
        let (operation, pod, outcome) = match step {
            Step::Idle { .. } => return,
            Step::Refuse { pod, operation, reason } => {
                (*operation, pod.as_str(), Err(StepError::transient(reason.to_string())))
            }
            Step::Verify => (Operation::Verify, "", self.verify(unique, inputs).await),
            Step::Stage { pod } => (Operation::Stage, "", self.stage(unique, inputs, pod).await),
            Step::Publish { pod } => {
                (Operation::Publish, pod.as_str(), self.publish(unique, inputs, pod).await)
            }
            Step::SetOwnership { pod } => {
                (Operation::SetOwnership, pod.as_str(), self.set_ownership(unique, inputs, pod).await)
            }
            Step::Expand { pod } => (Operation::Expand, pod.as_str(), self.expand(unique, inputs, pod).await),
            Step::Ready { pod } => {
                self.ready(unique, inputs, pod);
                return;
            }
            Step::Unpublish { pod } => {
                (Operation::Unpublish, pod.as_str(), self.unpublish(unique, inputs, pod).await)
            }
            Step::Unstage => (Operation::Unstage, "", self.unstage(unique, inputs).await),
            Step::DropState => {
                self.forget(unique);
                return;
            }
        };
        match outcome {
            Ok(()) => {
                let Volume { driver, handle, .. } = &inputs.volume;
                tracing::debug!(
                    driver,
                    volume_handle = handle,
                    pod_uid = pod,
                    ?operation,
                    "completed volume operation"
                );
                self.change(unique, |volume| {
                    volume.failures.remove(&(operation, pod.to_owned()));
                });
            }
            Err(error) => self.failed(unique, inputs, operation, pod, error),
        }
    }

    /// Records a failure, in the world and as an event.
    fn failed(&self, unique: &str, inputs: &Inputs, operation: Operation, pod: &str, error: StepError) {
        let StepError { class, message, max_delay } = error;
        tracing::warn!(
            driver = inputs.volume.driver,
            volume_handle = inputs.volume.handle,
            pod_uid = pod,
            ?operation,
            ?class,
            error = message,
            "volume operation failed; retrying"
        );
        self.record_failure_event(&inputs.volume, operation, pod, &message);
        let key = (operation, pod.to_owned());
        self.change(unique, |volume| {
            let before = volume.failures.get(&key);
            let mut failure = Failure::after(before, class, message, now(), monotonic(), &self.backoff);
            if let Some(max_delay) = max_delay {
                failure.pause = failure.pause.min(max_delay);
            }
            volume.failures.insert(key, failure);
            if class != Class::Transient {
                // Check the attachment again before the next attempt.
                volume.context = None;
            }
        });
        if !matches!(operation, Operation::Unpublish | Operation::Unstage) {
            let concerned = inputs.volume.desired.keys().filter(|uid| pod.is_empty() || *uid == pod);
            self.round_failed(concerned);
        }
    }

    async fn stage(&self, unique: &str, inputs: &Inputs, pod: &str) -> Result<(), StepError> {
        let (desired, plugin) = (self.wanted(inputs, pod)?, self.plugin(inputs)?);
        let secrets = self.secrets(desired, &Purpose::Stage, "NodeStageSecretRef").await?;
        let volume = &inputs.volume;
        let staging = volume.staging(&self.parts.root);
        let record = record(volume, desired);
        let (path, node, mode) = (staging.clone(), self.parts.node.clone(), volume.mode);
        let data_dir = self.parts.root.device_data(&volume.spec);
        self.disk
            .run(move |disk| match (mode, path.parent()) {
                (Mode::Filesystem, Some(dir)) => disk.write_record(dir, &record.staged(), Some(&path)),
                (Mode::Filesystem, None) => Ok(()),
                (Mode::Block, _) => disk.write_record(&data_dir, &record.published(&node), Some(&path)),
            })
            .await?;
        let call = MountCall { volume, desired, capabilities: &plugin.capabilities, staging: Some(&staging) };
        let request = call.stage(secrets.clone());
        let before = volume.device;
        self.change(unique, |volume| {
            volume.se_linux.clone_from(&desired.se_linux);
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
                let error = StepError::of_driver(&status, &secrets);
                if error.class == Class::Final && !matches!(before, Device::Uncertain { found: true }) {
                    self.not_staged(unique, &inputs.volume).await;
                }
                Err(error)
            }
        }
    }

    /// The driver reports that it did not stage: remove the directory, unless something is mounted there after all.
    async fn not_staged(&self, unique: &str, volume: &Volume) {
        let (path, mode, spec) = (volume.staging(&self.parts.root), volume.mode, volume.spec.clone());
        let removed = self.disk.run(move |disk| match mode {
            Mode::Filesystem => disk.remove(&path),
            Mode::Block => disk.remove_device(&spec),
        });
        match removed.await {
            Ok(()) => self.change(unique, |volume| volume.device = Device::None),
            Err(error) => {
                tracing::warn!(
                    driver = volume.driver,
                    volume_handle = volume.handle,
                    %error,
                    "failed to remove staging directory after NodeStageVolume failed"
                )
            }
        }
    }

    async fn publish(&self, unique: &str, inputs: &Inputs, pod: &str) -> Result<(), StepError> {
        let (desired, plugin) = (self.wanted(inputs, pod)?, self.plugin(inputs)?);
        let volume = &inputs.volume;
        let secrets = self.secrets(desired, &Purpose::Publish, "NodePublishSecretRef").await?;
        let tokens = match volume.mode {
            Mode::Filesystem => self.tokens(inputs, desired).await?,
            Mode::Block => None,
        };
        let target = volume.target(&self.parts.root, pod);
        if volume.mode == Mode::Block && volume.device == Device::None {
            // The driver does not stage, but a block volume's record is not in the published directory: clean it up
            // as if staged.
            self.change(unique, |volume| volume.device = Device::Uncertain { found: false });
        }
        self.prepare(volume, desired, pod).await?;
        let staging = volume.staging(&self.parts.root);
        let staging = (plugin.capabilities.stage_unstage && !volume.ephemeral).then_some(&*staging);
        let call = MountCall { volume, desired, capabilities: &plugin.capabilities, staging };
        let mut redacted = secrets.clone();
        redacted.extend(tokens.iter().flat_map(each_token));
        let tokens = tokens.map(|tokens| Value::Object(tokens).to_string());
        let request = call.publish(&target, inputs.driver(), secrets, tokens);
        let before = volume.mounts.get(pod).cloned();
        self.change(unique, |volume| {
            let spec = volume.spec.clone();
            let uncertain = || Mount { progress: Progress::Uncertain, found: false, published: None, spec };
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
                        mount.published = Some(monotonic());
                    }
                });
                Ok(())
            }
            Err(status) => {
                let error = StepError::of_driver(&status, &redacted);
                if error.class == Class::Final && before.is_none_or(|mount| is_disproved(&mount)) {
                    self.not_published(unique, volume, pod).await;
                }
                Err(error)
            }
        }
    }

    /// Writes the record and creates the directories that must exist before NodePublishVolume.
    async fn prepare(&self, volume: &Volume, desired: &DesiredMount, pod: &str) -> Result<(), StepError> {
        let record = record(volume, desired).published(&self.parts.node);
        let target = volume.target(&self.parts.root, pod);
        let (mode, data_dir) = (volume.mode, self.parts.root.device_data(&volume.spec));
        let prepared = self.disk.run(move |disk| match (mode, target.parent()) {
            // The driver creates the target itself.
            (Mode::Filesystem, Some(dir)) => disk.write_record(dir, &record, None),
            (Mode::Block, Some(dir)) => disk.write_record(&data_dir, &record, Some(dir)),
            (_, None) => Ok(()),
        });
        Ok(prepared.await?)
    }

    /// Links a block device in the pod's directory.
    async fn published(&self, volume: &Volume, pod: &str) -> Result<(), StepError> {
        if volume.mode == Mode::Filesystem {
            return Ok(());
        }
        let (spec, pod, target) = (volume.spec.clone(), pod.to_owned(), volume.target(&self.parts.root, pod));
        let linked = self.disk.run(move |disk| disk.link(&disk.device_link(&spec, &pod), &target));
        Ok(linked.await?)
    }

    /// The driver reports that it did not publish: remove the directory, unless something is mounted there after all.
    async fn not_published(&self, unique: &str, volume: &Volume, pod: &str) {
        let (target, mode) = (volume.target(&self.parts.root, pod), volume.mode);
        let (spec, uid) = (volume.spec.clone(), pod.to_owned());
        let removed = self.disk.run(move |disk| match mode {
            Mode::Filesystem => disk.remove(&target),
            Mode::Block => disk.remove_published_device(&spec, &uid),
        });
        match removed.await {
            Ok(()) => self.change(unique, |volume| {
                volume.mounts.remove(pod);
            }),
            Err(error) => {
                tracing::warn!(
                    driver = volume.driver,
                    volume_handle = volume.handle,
                    pod_uid = pod,
                    %error,
                    "failed to remove target path after NodePublishVolume failed"
                );
            }
        }
    }

    /// Marks the volume as mounted for the pod.
    fn ready(&self, unique: &str, inputs: &Inputs, pod: &str) {
        self.change(unique, |volume| {
            if let Some(mount) = volume.mounts.get_mut(pod) {
                mount.progress = Progress::Mounted;
            }
            if let Some(DesiredMount { source: Source::Persistent { claim, .. }, .. }) =
                volume.desired.get(pod)
            {
                volume.size = volume.size.or(claim.status.capacity.storage);
            }
            let of_pod =
                |operation: &Operation, uid: &str| uid == pod && !matches!(operation, Operation::Unpublish);
            volume.failures.retain(|(operation, uid), _| !of_pod(operation, uid));
        });
        let Volume { driver, handle, .. } = &inputs.volume;
        tracing::info!(driver, volume_handle = handle, pod_uid = pod, "mounted volume");
        self.record_ready_event(&inputs.volume, pod);
    }

    fn wanted<'a>(&self, inputs: &'a Inputs, pod: &str) -> Result<&'a DesiredMount, StepError> {
        inputs
            .volume
            .desired
            .get(pod)
            .ok_or_else(|| StepError::transient("the pod no longer uses the volume"))
    }

    fn plugin(&self, inputs: &Inputs) -> Result<Plugin, StepError> {
        let driver = &inputs.volume.driver;
        self.parts.plugins.get(driver).ok_or_else(|| {
            StepError::transient(format!(
                "driver name {driver} not found in the list of registered CSI drivers"
            ))
        })
    }

    /// Read when needed and never cached, so that a rotated secret takes effect immediately.
    async fn secrets(
        &self,
        desired: &DesiredMount,
        purpose: &Purpose,
        what: &str,
    ) -> Result<Secrets, StepError> {
        let Some(reference) = secret(desired, purpose) else { return Ok(Secrets::new()) };
        let key = reference.key();
        let failed = |reason: String| StepError::transient(format!("fetching {what} {key} failed: {reason}"));
        match self.parts.cluster.get::<Secret>(&key).await {
            Ok(Some(secret)) => secret.data.into_text().map_err(|error| failed(error.to_string())),
            Ok(None) => Err(failed(format!("secrets \"{}\" not found", key.name))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Requests tokens of the pod's service account, bound to the pod, one for each audience.
    async fn tokens(&self, inputs: &Inputs, desired: &DesiredMount) -> Result<Option<Tokens>, StepError> {
        let requests =
            inputs.driver().object().map(|driver| &driver.spec.token_requests[..]).unwrap_or_default();
        if requests.is_empty() {
            return Ok(None);
        }
        let pod = &desired.pod;
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let key = Key { namespace: pod.metadata.namespace.clone(), name: account.to_owned() };
        let mut tokens = Tokens::new();
        for request in requests {
            let body = token_request(&request.audience, request.expiration_seconds, desired);
            let response = self.parts.cluster.create_subresource(&ACCOUNTS, &key, "token", &body).await;
            let failed = |reason: &str| {
                StepError::transient(format!(
                    "failed to get service account token attributes of {key}: {reason}"
                ))
            };
            let mut response = response.map_err(|error| failed(&error.to_string()))?;
            match response.get_mut("status").map(Value::take) {
                Some(status @ Value::Object(_)) => tokens.insert(request.audience.clone(), status),
                _ => return Err(failed("the TokenRequest response contains no token")),
            };
        }
        Ok(Some(tokens))
    }
}

const ACCOUNTS: wharf_model::ApiResource = wharf_model::ApiResource {
    group: "",
    version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    scope: wharf_model::Scope::Namespaced,
};

fn token_request(audience: &str, expires: Option<i64>, desired: &DesiredMount) -> Value {
    let audiences: Vec<&str> = [audience].into_iter().filter(|audience| !audience.is_empty()).collect();
    let meta = &desired.pod.metadata;
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

/// Each token as a separate secret to redact: a driver quotes the token that was rejected, not the whole JSON. Keys
/// of a Secret contain no space, so these cannot collide with one.
fn each_token(tokens: &Tokens) -> Secrets {
    let word = |(audience, status): (&String, &Value)| {
        Some((format!("token for {audience}"), status["token"].as_str()?.to_owned()))
    };
    tokens.iter().filter_map(word).collect()
}

/// Whether a final error proves that nothing is published: not for mounts found from an earlier run or completed ones.
fn is_disproved(mount: &Mount) -> bool {
    mount.progress == Progress::Uncertain && !mount.found
}

/// The content of a volume's `vol_data.json`.
fn record(volume: &Volume, desired: &DesiredMount) -> Data {
    let lifecycle = match (volume.mode, volume.ephemeral) {
        (Mode::Block, _) => None,
        (Mode::Filesystem, true) => Some(VolumeLifecycleMode::Ephemeral),
        (Mode::Filesystem, false) => Some(VolumeLifecycleMode::Persistent),
    };
    Data {
        driver: volume.driver.clone(),
        handle: volume.handle.clone(),
        spec: Some(volume.spec.clone()),
        lifecycle,
        se_linux: desired.se_linux.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Tokens": bound to the pod; no audience means the API server's own.
    #[test]
    fn token_request_is_bound_to_the_pod() {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}});
        let inline = json!({"driver": "d"});
        let desired = DesiredMount {
            pod: std::sync::Arc::new(serde_json::from_value(pod).unwrap()),
            names: ["v".to_owned()].into(),
            source: Source::Inline(serde_json::from_value(inline).unwrap()),
            read_only: false,
            se_linux: None,
        };
        let request = token_request("vault", Some(600), &desired);
        assert_eq!(
            request["spec"],
            json!({
                "audiences": ["vault"], "expirationSeconds": 600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            })
        );
        assert_eq!(token_request("", None, &desired)["spec"]["audiences"], json!([]));
    }

    /// A driver may quote secrets in its error; events are widely readable.
    #[test]
    fn driver_errors_are_redacted() {
        let secrets = Secrets::from([("token".to_owned(), "s3cr3t".to_owned())]);
        let until = "2026-01-01T00:00:00Z";
        let tokens = Tokens::from_iter([
            (String::new(), json!({"token": "eyJh.e30.c2ln", "expirationTimestamp": until})),
            ("vault".to_owned(), json!({"token": "eyJi.e30.c2ln", "expirationTimestamp": until})),
        ]);
        for (given, quoted, redacted) in [
            (secrets, "s3cr3t", "***"),
            (each_token(&tokens), "eyJh.e30.c2ln", "***"),
            (each_token(&tokens), r#"{"vault":{"token":"eyJi.e30.c2ln"}}"#, r#"{"vault":{"token":"***"}}"#),
        ] {
            let error =
                StepError::of_driver(&Status::internal(format!("login with {quoted} failed")), &given);
            assert_eq!(
                error.message,
                format!("rpc error: code = Internal desc = login with {redacted} failed")
            );
            assert_eq!(error.class, Class::Final);
        }
    }

    /// kubernetes.md 1.8 "Final": a final error only clears mounts that became uncertain in this run.
    #[test]
    fn final_error_clears_only_uncertain_mounts_of_this_run() {
        let mount = |progress, found| Mount { progress, found, published: None, spec: String::new() };
        for (progress, found, gone) in [
            (Progress::Uncertain, false, true),
            (Progress::Uncertain, true, false),
            (Progress::Published, false, false),
            (Progress::Mounted, false, false),
        ] {
            assert_eq!(is_disproved(&mount(progress, found)), gone, "{progress:?} {found}");
        }
    }
}
