//! Lists with several pages.

use wharf_fake_digitalocean::{FaultEffect, Snapshot, Volume};

use crate::support::{Bench, REGION, bench};

fn fill(bench: &Bench, count: u64, region: &str) {
    bench.fake.change(|state, now| {
        for number in 0..count {
            let id = format!("{region}-{number:04}");
            let volume = Volume {
                id: id.clone(),
                name: format!("pvc-{number}"),
                region: region.to_owned(),
                size_gigabytes: 1,
                description: String::new(),
                filesystem_type: String::new(),
                filesystem_label: String::new(),
                tags: vec![],
                created: now,
                attached: None,
                snapshotted: None,
            };
            let snapshot = Snapshot {
                id: format!("s-{id}"),
                name: format!("snapshot-{number}"),
                volume: format!("{region}-0000"),
                region: region.to_owned(),
                min_disk_size: 1,
                tags: vec![],
                created: now,
            };
            state.volumes.insert(id, volume);
            state.snapshots.insert(snapshot.id.clone(), snapshot);
        }
    });
}

#[tokio::test]
async fn all_pages_are_read_with_no_extra_request() {
    for (count, pages) in [(0, 1), (1, 1), (200, 1), (201, 2), (450, 3)] {
        let bench = bench().await;
        fill(&bench, count, REGION);
        fill(&bench, 7, "ams3");
        let volumes = bench.client.volumes(REGION).await.unwrap();
        assert_eq!(volumes.len() as u64, count);
        assert!(volumes.iter().all(|volume| volume.region.slug == REGION));
        assert_eq!(bench.fake.requests().len(), pages, "{count} volumes");
        assert_eq!(bench.client.snapshots(REGION).await.unwrap().len() as u64, count);
        let first = format!("{REGION}-0000");
        let of_one = bench.client.snapshots_of(&first).await.unwrap();
        assert_eq!(of_one.map(|of_one| of_one.len() as u64), Some(count).filter(|count| *count > 0));
    }
}

/// An invalid id must not change the request path.
#[tokio::test]
async fn list_with_invalid_id_sends_no_request() {
    let bench = bench().await;
    for id in ["", "..", "../droplets", "a?b"] {
        assert_eq!(bench.client.snapshots_of(id).await.unwrap(), None, "{id:?}");
        assert_eq!(bench.client.actions(id).await.unwrap(), None, "{id:?}");
    }
    assert_eq!(bench.fake.requests().len(), 0);
}

#[tokio::test]
async fn names_are_found_only_in_their_region() {
    let bench = bench().await;
    fill(&bench, 3, REGION);
    fill(&bench, 3, "ams3");
    let found = bench.client.volumes_named("pvc-1", REGION).await.unwrap();
    assert_eq!(found.iter().map(|volume| volume.id.as_str()).collect::<Vec<_>>(), ["nyc3-0001"]);
}

#[tokio::test]
async fn broken_page_is_an_error_not_the_end_of_the_list() {
    for what in [
        FaultEffect::Truncated,
        FaultEffect::CutOff,
        FaultEffect::Html(200),
        FaultEffect::Html(404),
        FaultEffect::ResetAfter,
    ] {
        let bench = bench().await;
        fill(&bench, 450, REGION);
        bench.fake.add_fault(
            wharf_fake_digitalocean::Fault::new(what.clone()).at("GET", "/v2/volumes").skip(1).times(1),
        );
        assert_eq!(bench.client.volumes(REGION).await.unwrap().len(), 450, "{what:?}");
        assert_eq!(bench.fake.requests().len(), 4, "{what:?}");
    }
}
