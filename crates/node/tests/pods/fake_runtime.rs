//! Runs pods on a second implementation of the `Containers` trait, such as a CRI client would be.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::watch;
use wharf_cluster::now;
use wharf_container::{
    Cause, ContainerId, ContainerInfo, ContainerSpec, Containers, Exit, ListError, RemoveError, RunResult,
    StartError, State,
};

use crate::harness::TestNode;

/// A fake runtime that records containers and runs nothing.
#[derive(Default)]
struct FakeRuntime(Mutex<BTreeMap<ContainerId, (ContainerSpec, watch::Sender<State>)>>);

impl FakeRuntime {
    /// Lets a container exit with this code.
    fn exit(&self, id: &ContainerId, code: i32) {
        let (started, finished) = (now(), now());
        let exit = Exit { code, signal: None, started, finished, cause: Cause::Ended };
        if let Some((_, state)) = self.0.lock().unwrap().get(id) {
            state.send_replace(State::Exited(exit));
        }
    }

    /// The only container.
    fn only(&self) -> (ContainerId, ContainerSpec) {
        let all = self.0.lock().unwrap();
        assert_eq!(all.len(), 1);
        all.iter().next().map(|(id, (spec, _))| (id.clone(), spec.clone())).unwrap()
    }
}

#[async_trait]
impl Containers for FakeRuntime {
    fn list(&self) -> Result<Vec<ContainerInfo>, ListError> {
        let all = self.0.lock().unwrap();
        let found = |(id, (spec, state)): (&ContainerId, &(ContainerSpec, watch::Sender<State>))| {
            let ContainerSpec { namespace, pod, pod_uid, container, attempt, labels, .. } = spec.clone();
            let (id, state) = (id.clone(), state.borrow().clone());
            ContainerInfo { id, namespace, pod, pod_uid, container, attempt, labels, this_boot: true, state }
        };
        Ok(all.iter().map(found).collect())
    }

    fn state(&self, id: &ContainerId) -> State {
        self.0.lock().unwrap().get(id).map_or(State::Unknown, |(_, state)| state.borrow().clone())
    }

    async fn exited(&self, id: &ContainerId) -> Option<Exit> {
        let mut state = self.0.lock().unwrap().get(id).map(|(_, state)| state.subscribe())?;
        let state = state.wait_for(|state| matches!(state, State::Exited(_))).await.ok()?.clone();
        match state {
            State::Exited(exit) => Some(exit),
            State::Running { .. } | State::Unknown => None,
        }
    }

    async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError> {
        let (id, running) = (spec.id(), State::Running { pid: 0, started: now() });
        self.0.lock().unwrap().entry(id.clone()).or_insert_with(|| (spec, watch::Sender::new(running)));
        Ok(id)
    }

    async fn stop(&self, id: &ContainerId, _grace: Duration) -> Option<Exit> {
        self.exit(id, 143);
        self.exited(id).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError> {
        self.0.lock().unwrap().remove(id);
        Ok(())
    }

    async fn run(&self, _id: &ContainerId, command: &[String], _limit: Duration) -> RunResult {
        RunResult::Ended { code: i32::from(command != ["ready"]), output: String::new() }
    }
}

#[tokio::test]
async fn pod_runs_on_another_container_runtime() {
    let runtime = Arc::new(FakeRuntime::default());
    let node = TestNode::with_runtime(Arc::clone(&runtime) as _).await;
    node.pod("p", "exit 1", |pod| {
        pod["spec"]["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["ready"]}});
    })
    .await;
    let ready = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let pod = node.wait_for("p", ready).await;
    let (first, spec) = runtime.only();
    assert_eq!(spec.command, ["/bin/sh", "-c", "exit 1"]);
    assert_eq!(pod["status"]["containerStatuses"][0]["containerID"], format!("wharf://{first}"));
    // The container fails and is restarted.
    runtime.exit(&first, 3);
    let restarted = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    let pod = node.wait_for("p", |pod| restarted(pod) && ready(pod)).await;
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(3), &json!("Error")));
    node.delete("p").await;
    node.wait_until_removed("p", pod["metadata"]["uid"].as_str().unwrap()).await;
    assert!(runtime.list().unwrap().is_empty(), "a container is left over");
}
