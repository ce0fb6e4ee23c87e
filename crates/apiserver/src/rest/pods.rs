//! Subresources of pods: binding and eviction.

use serde_json::{Value, json};
use wharf_model::Time;

use super::options::{self, WriteOptions};
use super::response::ApiResponse;
use super::route::{Target, Verb};
use super::{Api, encode, meta};
use crate::access::User;
use crate::status::{Cause, Resource, StatusError};
use crate::store::{Change, WriteError};

const BINDING: Resource<'static> = Resource { group: "", plural: "pods/binding" };

/// Assigns the pod to the node that the binding names. A pod is bound once.
fn bind_pod(pod: &Value, binding: &Value, now: Time) -> Result<Value, StatusError> {
    let name = meta::name(pod);
    let (target, kind) = (meta::text(binding, "/target/name"), meta::text(binding, "/target/kind"));
    let mut causes = Vec::new();
    if !matches!(kind, "" | "Node") {
        causes.push(Cause::not_supported("target.kind", &kind.into(), &["Node", "<empty>"]));
    }
    if target.is_empty() {
        causes.push(Cause::required("target.name", ""));
    }
    if !causes.is_empty() {
        return Err(StatusError::invalid("", "Binding", name, causes));
    }
    let conflict = |reason: String| Err(StatusError::conflict(BINDING, name, &reason));
    let uid = meta::uid(binding);
    if !uid.is_empty() && uid != meta::uid(pod) {
        return conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(pod)
        ));
    }
    if meta::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = meta::text(pod, "/spec/nodeName");
    if !node.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {node:?}"));
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    meta::map(&mut pod, "spec").insert("nodeName".into(), target.into());
    for field in ["annotations", "labels"] {
        let Some(Value::Object(more)) = binding.pointer(&format!("/metadata/{field}")) else { continue };
        let mut all = pod
            .pointer(&format!("/metadata/{field}"))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        all.extend(more.clone());
        meta::set(&mut pod, field, Value::Object(all));
    }
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now.to_string(),
    });
    let conditions = meta::map(&mut pod, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(conditions) = conditions {
        conditions.retain(|condition| meta::text(condition, "/type") != "PodScheduled");
        conditions.push(scheduled);
    }
    Ok(pod)
}

/// The `Status` for a created object that has no state.
fn created_status() -> ApiResponse {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    ApiResponse::Json(201, status)
}

impl Api {
    /// Binds a pod to a node.
    pub(crate) async fn bind(
        &self,
        target: &Target,
        binding: &Value,
        options: WriteOptions,
    ) -> Result<ApiResponse, StatusError> {
        let kind = target.kind;
        let key = encode::key(kind, &target.namespace, &target.name);
        loop {
            let Some(entry) = self.store().get(&key) else {
                return Err(StatusError::not_found(kind.resource(), &target.name));
            };
            let pod = bind_pod(&encode::decode(kind, &entry.value)?, binding, self.now())?;
            if options.dry_run {
                return Ok(created_status());
            }
            let change = Change::Update(entry.revision, encode::body(kind, &pod, self.now()));
            match self.store().write(key.clone(), change).await {
                Ok(_) => return Ok(created_status()),
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(super::write_status_error(kind, &target.name, error)),
            }
        }
    }

    /// Evicts a pod with the delete options of the eviction. There are no PodDisruptionBudgets here.
    pub(crate) async fn evict(
        &self,
        user: &User,
        target: &Target,
        eviction: &Value,
        write_options: WriteOptions,
    ) -> Result<ApiResponse, StatusError> {
        let named = meta::name(eviction);
        if !named.is_empty() && named != target.name {
            return Err(StatusError::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = options::delete_from(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
        options.dry_run |= write_options.dry_run;
        let pod = Target { verb: Verb::Delete, subresource: String::new(), ..target.clone() };
        self.delete(user, &pod, &options).await?;
        Ok(created_status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value, metadata: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u", "generation": 1}, "spec": spec});
        meta::map(&mut pod, "metadata").extend(metadata.as_object().unwrap().clone());
        pod
    }

    #[test]
    fn pod_is_bound_once() {
        let binding = json!({
            "metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n1"},
        });
        let free = pod(json!({}), json!({"annotations": {"c": "d"}}));
        let on_node = bind_pod(&free, &binding, Time(0)).unwrap();
        assert_eq!(on_node["spec"]["nodeName"], "n1");
        assert_eq!(on_node["metadata"]["annotations"], json!({"a": "b", "c": "d"}));
        let condition = &on_node["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
        for (pod, binding, code, message) in [
            (
                on_node.clone(),
                binding.clone(),
                409,
                "pods/binding \"p\": pod p is already assigned to node \"n1\"",
            ),
            (
                pod(json!({}), json!({"deletionTimestamp": "t"})),
                binding.clone(),
                409,
                "pod p is being deleted",
            ),
            (
                pod(json!({"schedulingGates": [{"name": "g"}]}), json!({})),
                binding.clone(),
                409,
                "schedulingGates",
            ),
            (
                free.clone(),
                json!({"metadata": {"uid": "v"}, "target": {"name": "n"}}),
                409,
                "UID in precondition: v",
            ),
            (
                free.clone(),
                json!({"target": {"kind": "Pod", "name": "n"}}),
                422,
                "target.kind: Unsupported value",
            ),
            (free.clone(), json!({"target": {}}), 422, "target.name: Required value"),
        ] {
            let status_error = bind_pod(&pod, &binding, Time(0)).unwrap_err();
            assert_eq!(status_error.code, code, "{message}");
            assert!(status_error.message.contains(message), "{status_error}");
        }
    }
}
