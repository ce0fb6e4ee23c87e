use serde_json::{Value, json};

use super::*;

fn pod(volumes: Value) -> Arc<Pod> {
    let pod =
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"}, "spec": {"volumes": volumes}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn world(pod: &Arc<Pod>, released: bool) -> World {
    let mut world = World::default();
    let entry = PodEntry { pod: Some(Arc::clone(pod)), released, ..PodEntry::default() };
    world.pods.insert("u1".into(), entry);
    world
}

fn resolved(pod: &Arc<Pod>, volume: &PodVolume) -> (Volume, DesiredMount) {
    let persistent = json!({"metadata": {"name": "pv1"}, "spec": {
        "claimRef": {"uid": ""}, "csi": {"driver": "d", "volumeHandle": "h"},
    }});
    let persistent = Arc::new(serde_json::from_value(persistent).unwrap());
    resolve::persistent(pod, volume, Arc::default(), persistent, None).unwrap()
}

/// kubernetes.md 1.8 "Wanted volumes": the same claim twice in a pod is one mount, writable if either is.
#[test]
fn claim_used_twice_is_mounted_once() {
    let claim = |name: &str, read_only: bool| json!({"name": name, "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}});
    let pod = pod(json!([claim("a", true), claim("b", false), claim("c", true)]));
    let mut world = world(&pod, false);
    for (volume, read_only, names) in [(0, true, 1), (1, false, 2), (2, false, 3)] {
        let volume = &pod.spec.volumes[volume];
        let (known, desired) = resolved(&pod, volume);
        assert!(add(&mut world, "u1", volume, "uvn", known, desired));
        let desired = &world.volumes["uvn"].desired["u1"];
        assert_eq!((desired.read_only, desired.names.len()), (read_only, names), "{}", volume.name);
    }
    assert_eq!(world.pods["u1"].resolved.len(), 3);
}

/// A repeated request changes nothing, and a released pod gets no mount.
#[test]
fn repeated_or_late_request_changes_nothing() {
    let pod = pod(json!([{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}]));
    let volume = &pod.spec.volumes[0];
    let (known, desired) = resolved(&pod, volume);
    let mut first = world(&pod, false);
    assert!(add(&mut first, "u1", volume, "uvn", known.clone(), desired.clone()));
    assert!(!add(&mut first, "u1", volume, "uvn", known.clone(), desired.clone()));
    let mut gone = world(&pod, true);
    assert!(!add(&mut gone, "u1", volume, "uvn", known, desired));
    assert!(gone.volumes.is_empty());
}

/// kubernetes#85476: a volume found staged gets its name from the first pod that uses it.
#[test]
fn found_volume_gets_its_name_from_the_first_pod() {
    let pod = pod(json!([{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}]));
    let (known, desired) = resolved(&pod, &pod.spec.volumes[0]);
    let mut world = world(&pod, false);
    let found = Volume { spec: "0a1b2c".into(), ..known.clone() };
    world.volumes.insert("uvn".into(), found);
    assert!(add(&mut world, "u1", &pod.spec.volumes[0], "uvn", known, desired));
    assert_eq!(world.volumes["uvn"].spec, "pv1");
}

/// A detach may be among changes that were dropped: then the publish context is that of an earlier attachment.
#[test]
fn resync_reads_attachments_again() {
    let pod = pod(json!([{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}]));
    let (known, _) = resolved(&pod, &pod.spec.volumes[0]);
    let mut world = world(&pod, false);
    world.volumes.insert("uvn".into(), Volume { context: Some(Default::default()), ..known });
    let subjects = super::super::subjects_to_resync(&mut world);
    assert_eq!(subjects, [Subject::Pod("u1".into()), Subject::Volume("uvn".into())]);
    assert_eq!(world.volumes["uvn"].context, None);
}
