//! Everything outside the controller: the API server's objects, users, machines and their agents, and the attacher.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use wharf_model::attachment::VolumeError;
use wharf_model::node::{AttachedVolume, Taint};
use wharf_model::testing::SeededRng;
use wharf_model::{Node, Pod};
use wharf_model::{Time, VolumeAttachment};

use super::super::testing::object;
use super::super::view::may_be_running;
use super::{NODES, VOLUMES, Violation, volume};

/// Objects by name, in the API server or in a store.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Objects {
    pub(super) pods: BTreeMap<String, Arc<Pod>>,
    pub(super) nodes: BTreeMap<String, Arc<Node>>,
    pub(super) attachments: BTreeMap<String, Arc<VolumeAttachment>>,
}

/// An object, by kind and name.
pub(super) type Named = (&'static str, String);

impl Objects {
    /// The names in either of the two.
    pub(super) fn names(&self, other: &Self) -> Vec<Named> {
        let mut names = BTreeSet::new();
        for objects in [self, other] {
            names.extend(objects.pods.keys().map(|name| ("pod", name.clone())));
            names.extend(objects.nodes.keys().map(|name| ("node", name.clone())));
            names.extend(objects.attachments.keys().map(|name| ("attachment", name.clone())));
        }
        names.into_iter().collect()
    }

    /// Copies the current version of one object.
    pub(super) fn take(&mut self, from: &Self, (kind, name): Named) {
        fn one<T: Clone>(to: &mut BTreeMap<String, T>, from: &BTreeMap<String, T>, name: String) {
            match from.get(&name) {
                Some(object) => drop(to.insert(name, object.clone())),
                None => drop(to.remove(&name)),
            }
        }
        match kind {
            "pod" => one(&mut self.pods, &from.pods, name),
            "node" => one(&mut self.nodes, &from.nodes, name),
            _ => one(&mut self.attachments, &from.attachments, name),
        }
    }
}

/// A machine and the agent on it.
#[derive(Default)]
struct Machine {
    /// Whether its agent is running.
    agent_running: bool,
    /// Volumes that the agent found attached and is about to mount.
    mounting: BTreeSet<&'static str>,
    mounted: BTreeSet<&'static str>,
}

pub(super) struct World {
    pub(super) server: Objects,
    machines: BTreeMap<&'static str, Machine>,
    /// The nodes to which the driver has published volumes.
    published: BTreeSet<(&'static str, String)>,
    created: u64,
}

impl World {
    pub(super) fn new(nodes: &[&'static str]) -> Self {
        let machine = |name: &&'static str| (*name, Machine { agent_running: true, ..Machine::default() });
        let machines = nodes.iter().map(machine).collect();
        let (server, published) = Default::default();
        let mut world = Self { server, machines, published, created: 0 };
        for node in nodes {
            world.register(node);
        }
        world
    }

    /// An agent without a Node creates one, with the volumes it uses.
    fn register(&mut self, name: &str) {
        self.created += 1;
        let machine = self.machines.get(name);
        let used = machine.into_iter().flat_map(|machine| machine.mounted.union(&machine.mounting));
        let used: Vec<String> = used.map(|handle| volume(handle).to_string()).collect();
        let node = object(json!({
            "metadata": {
                "name": name,
                "uid": format!("node-{}", self.created),
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "volumesInUse": used},
        }));
        self.server.nodes.insert(name.to_owned(), node);
    }

    fn node(&mut self, name: &str) -> Option<&mut Node> {
        self.server.nodes.get_mut(name).map(Arc::make_mut)
    }

    /// Creates a running pod that uses a volume.
    pub(super) fn pod(&mut self, handle: &str, node: &str, now: Time) {
        self.created += 1;
        let name = format!("p{}", self.created);
        let pod = object(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "creationTimestamp": now.to_string()},
            "spec": {
                "nodeName": node,
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": handle}}],
            },
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        }));
        self.server.pods.insert(name, pod);
    }

    /// Users create and delete pods, and taint or delete nodes that are off.
    pub(super) fn user_action(&mut self, random: &mut SeededRng, now: Time) {
        let pods: Vec<String> = self.server.pods.keys().cloned().collect();
        match random.below(6) {
            0..=2 if pods.len() < 5 => {
                let handle = VOLUMES[random.below(2) as usize];
                // Often to where the volume is: it may be being detached.
                let is_there = |node: &&&str| {
                    self.server.attachments.contains_key(&volume(handle).attachment_name(node))
                };
                let near: Vec<&str> = NODES.iter().filter(is_there).copied().collect();
                let any = NODES[random.below(3) as usize];
                let node = random.pick(&near).filter(|_| random.one_in(2)).unwrap_or(any);
                self.pod(handle, node, now);
            }
            3 | 4 => {
                let Some(name) = random.pick(&pods) else { return };
                let Some(pod) = self.server.pods.get_mut(&name).map(Arc::make_mut) else { return };
                let is_down =
                    self.machines.get(pod.node_name.as_str()).is_some_and(|machine| !machine.agent_running);
                pod.metadata.deletion_timestamp = Some(now);
                if is_down && random.one_in(2) {
                    self.server.pods.remove(&name);
                }
            }
            _ => {
                let name = NODES[random.below(3) as usize];
                let off = !self.machines[name].agent_running;
                let delete = off && random.one_in(4);
                let Some(node) = self.node(name) else { return };
                node.spec.taints.clear();
                if off {
                    let key = "node.kubernetes.io/out-of-service".to_owned();
                    let taint = Taint { key, effect: "NoExecute".into(), ..Taint::default() };
                    node.spec.taints.push(taint);
                }
                if delete {
                    self.server.nodes.remove(name);
                }
            }
        }
    }

    /// A machine fails, or comes back, with or without a restart.
    pub(super) fn node_failure(&mut self, random: &mut SeededRng) {
        let name = NODES[random.below(3) as usize];
        let restarted = random.one_in(2);
        let Some(machine) = self.machines.get_mut(name) else { return };
        machine.agent_running = !machine.agent_running;
        let agent_running = machine.agent_running;
        if agent_running && restarted {
            machine.mounted.clear();
            machine.mounting.clear();
        }
        if agent_running && !self.server.nodes.contains_key(name) {
            self.register(name);
        }
        if let Some(node) = self.node(name) {
            node.status.conditions[0].status = if agent_running { "True" } else { "Unknown" }.to_owned();
        }
    }

    /// An agent does one thing. As kubelet, it reports what it uses before it reads what is attached.
    pub(super) fn agent_step(&mut self, random: &mut SeededRng) {
        let name = NODES[random.below(3) as usize];
        let Some(node) = self.server.nodes.get(name).cloned() else { return };
        let Some(machine) = self.machines.get_mut(name).filter(|machine| machine.agent_running) else {
            return;
        };
        let here = |pod: &&Arc<Pod>| pod.node_name == name;
        let claim = |pod: &Arc<Pod>| {
            let claim = pod.claims.first().map(String::as_str);
            VOLUMES.into_iter().find(|volume| claim == Some(*volume))
        };
        let wanted: BTreeSet<&'static str> = self
            .server
            .pods
            .values()
            .filter(here)
            .filter(|pod| may_be_running(pod))
            .filter_map(claim)
            .collect();
        let full = |handle: &&'static str| volume(handle).to_string();
        match random.below(6) {
            0 | 1 => {
                let used: BTreeSet<&'static str> =
                    wanted.iter().chain(&machine.mounted).chain(&machine.mounting).copied().collect();
                let used = used.iter().map(full).collect();
                if let Some(node) = self.node(name) {
                    node.status.volumes_in_use = used;
                }
            }
            2 | 3 => {
                let (status, server) = (&node.status, &self.server);
                let attached = |handle: &&&'static str| {
                    let listed = status.volumes_attached.iter().any(|attached| attached.name == full(handle));
                    let attachment = server.attachments.get(&volume(handle).attachment_name(name));
                    let is_attached =
                        |a: &Arc<VolumeAttachment>| a.status.attached && !a.metadata.is_deleting();
                    status.volumes_in_use.contains(&full(handle))
                        && listed
                        && attachment.is_some_and(is_attached)
                };
                let found: Vec<&'static str> =
                    wanted.difference(&machine.mounted).filter(attached).copied().collect();
                machine.mounting.extend(found);
            }
            4 => machine.mounted.append(&mut machine.mounting),
            _ => {
                machine.mounted.retain(|handle| wanted.contains(handle));
                let ending = |pod: &Pod| pod.node_name == name && pod.metadata.is_deleting();
                for pod in self.server.pods.values_mut().filter(|pod| ending(pod)) {
                    let state = &mut Arc::make_mut(pod).status.container_statuses[0].state;
                    state.running = None;
                    state.terminated = Some(Default::default());
                }
                let live = self.server.pods.values().filter(here).filter(|pod| may_be_running(pod));
                let wanted: BTreeSet<&'static str> = live.filter_map(claim).collect();
                let unmounted = |handle| !machine.mounted.contains(handle) || wanted.contains(handle);
                let done = |pod: &Arc<Pod>| ending(pod) && claim(pod).is_none_or(unmounted);
                self.server.pods.retain(|_, pod| !done(pod));
            }
        }
    }

    /// The attacher processes one attachment. It never rejects a second node by itself.
    pub(super) fn attacher_step(&mut self, random: &mut SeededRng, faults: bool) -> Result<(), Violation> {
        let names: Vec<String> = self.server.attachments.keys().cloned().collect();
        let Some(name) = random.pick(&names) else { return Ok(()) };
        let Some(attachment) = self.server.attachments.get_mut(&name).map(Arc::make_mut) else {
            return Ok(());
        };
        let source = attachment.spec.source.persistent_volume_name.clone();
        let Some(handle) = VOLUMES.into_iter().find(|volume| source.as_deref() == Some(*volume)) else {
            return Ok(());
        };
        let at = (handle, attachment.spec.node_name.clone());
        let fails = faults && random.one_in(3);
        let error = || Some(VolumeError { message: "no".into(), ..VolumeError::default() });
        if attachment.metadata.is_deleting() {
            if fails {
                attachment.status.detach_error = error();
            } else {
                self.published.remove(&at);
                self.server.attachments.remove(&name);
            }
        } else if !attachment.status.attached {
            attachment.metadata.finalizers = vec!["external-attacher/d-test".into()];
            if fails {
                attachment.status.attach_error = error();
            } else {
                attachment.status.attached = true;
                attachment.status.attach_error = None;
            }
            // A failed call may have taken effect.
            if !fails || random.one_in(2) {
                let elsewhere = |other: &(&str, String)| other.0 == handle && other.1 != at.1;
                if handle == "x" && self.published.iter().any(elsewhere) {
                    return Err(Violation::TwoNodes { volume: handle.to_owned(), node: at.1 });
                }
                self.published.insert(at);
            }
        }
        Ok(())
    }

    pub(super) fn is_mounted(&self, volume: &str, node: &str) -> bool {
        let has = |machine: &Machine| machine.mounted.contains(volume) || machine.mounting.contains(volume);
        self.machines.get(node).is_some_and(has)
    }

    /// Applies a request of the controller.
    pub(super) fn attach(&mut self, handle: &str, node: &str) {
        self.created += 1;
        let (name, uid) = (volume(handle).attachment_name(node), format!("va-{}", self.created));
        self.server.attachments.entry(name.clone()).or_insert_with(|| {
            object(json!({
                "metadata": {"name": name, "uid": uid},
                "spec": {"attacher": "d.test", "nodeName": node, "source": {"persistentVolumeName": handle}},
                "status": {"attached": false},
            }))
        });
    }

    /// Applies a request of the controller.
    pub(super) fn detach(&mut self, name: &str, uid: &str) {
        let Some(attachment) = self.server.attachments.get_mut(name).map(Arc::make_mut) else { return };
        if attachment.metadata.uid != uid {
            return;
        }
        if attachment.metadata.finalizers.is_empty() {
            self.server.attachments.remove(name);
        } else {
            attachment.metadata.deletion_timestamp.get_or_insert(Time(0));
        }
    }

    /// Applies a request of the controller.
    pub(super) fn report(&mut self, name: &str, uid: &str, list: &[AttachedVolume]) {
        if let Some(node) = self.node(name).filter(|node| node.metadata.uid == uid) {
            node.status.volumes_attached = list.to_vec();
        }
    }

    /// All machines are running and Ready, and have no taints.
    pub(super) fn make_feasible(&mut self) {
        for name in NODES {
            if let Some(machine) = self.machines.get_mut(name) {
                machine.agent_running = true;
                machine.mounting.clear();
            }
            if !self.server.nodes.contains_key(name) {
                self.register(name);
            }
            if let Some(node) = self.node(name) {
                node.status.conditions[0].status = "True".to_owned();
                node.spec.taints.clear();
            }
        }
    }

    /// Mounts of volumes that were detached by force are lost.
    pub(super) fn drop_detached_mounts(&mut self) {
        let published = &self.published;
        for (name, machine) in &mut self.machines {
            machine.mounted.retain(|handle| published.contains(&(*handle, (*name).to_owned())));
        }
    }

    /// What has not reached the expected final state.
    pub(super) fn not_converged(&self) -> Option<String> {
        if self.server.pods.values().any(|pod| pod.metadata.is_deleting()) {
            return Some("a pod is still being deleted".into());
        }
        for handle in VOLUMES {
            let name = volume(handle).to_string();
            let uses = |pod: &&Arc<Pod>| pod.claims.first().map(String::as_str) == Some(handle);
            let wanted: BTreeSet<&str> =
                self.server.pods.values().filter(uses).map(|pod| pod.node_name.as_str()).collect();
            let mut attached_nodes = BTreeSet::new();
            for node in NODES {
                let status = &self.server.nodes[node].status;
                let attachment = self.server.attachments.get(&volume(handle).attachment_name(node));
                let attached = attachment.is_some_and(|a| a.status.attached && !a.metadata.is_deleting());
                let listed = status.volumes_attached.iter().any(|attached| attached.name == name);
                let mounted = self.machines[node].mounted.contains(handle);
                let state = (attached, listed, mounted);
                if attachment.is_some() && !wanted.contains(node) || listed != attached || mounted != attached
                {
                    let wanted = wanted.contains(node);
                    return Some(format!("{handle} on {node}: {state:?}, wanted {wanted}"));
                }
                if attached {
                    attached_nodes.insert(node);
                }
            }
            let enough = if handle == "x" {
                attached_nodes.len() == wanted.len().min(1)
            } else {
                attached_nodes == wanted
            };
            if !enough {
                return Some(format!("{handle} is on {attached_nodes:?}, wanted on {wanted:?}"));
            }
        }
        None
    }
}
