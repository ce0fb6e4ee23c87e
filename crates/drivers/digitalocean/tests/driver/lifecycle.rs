//! The full lifecycle of a mounted and a raw volume.

use wharf_csi::v1;

use crate::support::{Bench, GIB, HERE, THERE, block, mount, restored};

#[tokio::test]
async fn full_lifecycle_leaves_nothing() {
    let mut bench = Bench::with(|config| config.tag = Some("k8s:test".into())).await;
    let here = HERE.to_string();
    // The size is rounded up, reported as created, and recognized on retry.
    let volume = bench.create("pvc-1", GIB + GIB / 2).await.unwrap();
    assert_eq!(volume.capacity_bytes, 2 * GIB);
    assert_eq!(bench.create("pvc-1", GIB + GIB / 2).await.unwrap(), volume);
    assert_eq!(volume.accessible_topology[0].segments["region"], "nyc3");
    let id = volume.volume_id.clone();
    let made = bench.fake.state().volumes[&id].clone();
    assert_eq!(made.description, "Created by DigitalOcean CSI driver");
    assert_eq!(made.tags, ["k8s:test"]);

    let context = bench.attach(&id, &here).await.unwrap();
    assert_eq!(context["dobs.csi.digitalocean.com/volume-name"], "pvc-1");
    assert_eq!(
        bench.attach(&id, &here).await.unwrap(),
        context,
        "a repeated attach returns the same context"
    );
    let xfs = mount("xfs");
    bench.stage(&id, &xfs, context.clone()).await.unwrap();
    bench.stage(&id, &xfs, context.clone()).await.unwrap();
    bench.publish(&id, "pod", &xfs, context.clone()).await.unwrap();
    std::fs::write(bench.target("pod").join("file"), "data").unwrap();
    crate::support::run("sync", &["-f", &crate::support::text(&bench.target("pod"))]);
    let snapshot = bench.snapshot("snapshot-1", &id).await.unwrap();
    assert_eq!(bench.snapshot("snapshot-1", &id).await.unwrap(), snapshot);
    assert_eq!((snapshot.size_bytes, snapshot.ready_to_use), (2 * GIB, true));

    // State survives a restart.
    bench.restart().await;
    let published = bench.call(v1::ListVolumesRequest::default()).await.unwrap().entries;
    assert_eq!(published[0].status.as_ref().unwrap().published_node_ids, std::slice::from_ref(&here));

    // Larger than its snapshot, and staged alongside its source, which has the same UUID.
    let copy = bench.call(restored("pvc-2", 3 * GIB, &snapshot.snapshot_id)).await.unwrap().volume.unwrap();
    assert_eq!(copy.capacity_bytes, 3 * GIB);
    let again = bench.call(restored("pvc-2", 3 * GIB, &snapshot.snapshot_id)).await.unwrap().volume.unwrap();
    assert_eq!(again, copy);
    let copy = copy.volume_id;
    let copied = bench.attach(&copy, &here).await.unwrap();
    bench.stage(&copy, &xfs, copied).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.staging(&copy).join("file")).unwrap(), "data");
    let total = |usage: Vec<v1::VolumeUsage>| usage[0].total;
    assert!(total(bench.stats(&copy, &bench.staging(&copy)).await.unwrap()) > 5 * GIB / 2, "it grew");

    // Online expansion.
    assert_eq!(bench.expand(&copy, 7 * GIB / 2).await.unwrap(), 4 * GIB);
    assert_eq!(bench.expand_on_node(&copy, 4 * GIB).await.unwrap(), 4 * GIB);
    assert!(
        total(bench.stats(&copy, &bench.staging(&copy)).await.unwrap()) > 7 * GIB / 2,
        "the file system must grow"
    );
    assert_eq!(bench.expand(&copy, GIB).await.unwrap(), 4 * GIB, "already large enough");

    bench.unpublish(&id, "pod").await.unwrap();
    for id in [&id, &copy] {
        bench.unstage(id).await.unwrap();
        bench.unstage(id).await.unwrap();
    }
    bench.detach(&copy, &here).await.unwrap();
    bench.detach(&copy, &here).await.unwrap();
    // Attach to the other droplet, then detach without a node.
    bench.detach(&id, &here).await.unwrap();
    bench.attach(&id, &THERE.to_string()).await.unwrap();
    bench.detach(&id, "").await.unwrap();
    for id in [&id, &copy] {
        bench.delete(id).await.unwrap();
        bench.delete(id).await.unwrap();
    }
    bench.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    bench.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    bench.assert_empty();
}

/// The existing driver has no statistics for raw volumes.
#[tokio::test]
async fn raw_volume_reports_its_size() {
    let bench = Bench::new().await;
    let here = HERE.to_string();
    let id = bench.create("pvc-raw", GIB).await.unwrap().volume_id;
    let context = bench.attach(&id, &here).await.unwrap();
    bench.stage(&id, &block(), context.clone()).await.unwrap();
    bench.publish(&id, "raw", &block(), context).await.unwrap();
    assert_eq!(bench.stats(&id, &bench.target("raw")).await.unwrap()[0].total, GIB);
    bench.unpublish(&id, "raw").await.unwrap();
    bench.unstage(&id).await.unwrap();
    bench.detach(&id, &here).await.unwrap();
    bench.delete(&id).await.unwrap();
    bench.assert_empty();
}

/// Each entry is returned once, with any page size, also while volumes are created and deleted.
#[tokio::test]
async fn paged_listing_returns_each_volume_once() {
    let bench = Bench::new().await;
    for number in 0..7 {
        bench.create(&format!("pvc-{number}"), GIB).await.unwrap();
    }
    for sizes in [[2, 2], [2, 4], [4, 2], [1, 3], [6, 1]] {
        let (mut names, mut token) = (Vec::new(), String::new());
        for max_entries in sizes.into_iter().cycle() {
            let request = v1::ListVolumesRequest { max_entries, starting_token: token };
            let response = bench.call(request).await.unwrap();
            names.extend(response.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            token = response.next_token;
            if token.is_empty() {
                break;
            }
        }
        names.sort();
        let all: Vec<String> = bench.fake.state().volumes.into_keys().collect();
        assert_eq!(names, all, "{sizes:?}");
    }
}
