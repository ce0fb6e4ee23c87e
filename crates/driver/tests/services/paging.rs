//! Paging while volumes are created and deleted.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use wharf_csi::v1;
use wharf_driver::ServeOptions;

use crate::memory::{Memory, Served};

/// A change between two pages.
#[derive(Debug, Clone)]
enum Change {
    Insert(u8),
    Remove(u8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![any::<u8>().prop_map(Change::Insert), any::<u8>().prop_map(Change::Remove)]
}

fn id(number: u8) -> String {
    format!("v-{number:03}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn volumes_that_exist_throughout_are_listed_exactly_once(
        before in proptest::collection::btree_set(any::<u8>(), 0..60),
        max_entries in 1..8i32,
        changes in vec(vec(change(), 0..6), 0..100),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let memory = Memory::new();
            before.iter().for_each(|number| memory.insert(&id(*number)));
            let mut always: BTreeSet<u8> = before;
            let served = Served::start(memory.driver(), ServeOptions::default()).await;
            let (mut listed, mut starting_token, mut changes) = (Vec::new(), String::new(), changes.into_iter());
            loop {
                let request = v1::ListVolumesRequest { max_entries, starting_token };
                let page = served.client.controller().list_volumes(request).await.unwrap().into_inner();
                prop_assert!(page.entries.len() <= usize::try_from(max_entries).unwrap());
                listed.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
                if page.next_token.is_empty() {
                    break;
                }
                starting_token = page.next_token;
                for change in changes.next().unwrap_or_default() {
                    match change {
                        Change::Insert(number) => memory.insert(&id(number)),
                        Change::Remove(number) => {
                            always.remove(&number);
                            memory.remove(&id(number));
                        }
                    }
                }
            }
            prop_assert!(listed.is_sorted_by(|a, b| a < b), "each once, in order: {listed:?}");
            for number in always {
                prop_assert!(listed.contains(&id(number)), "{number} is missing in {listed:?}");
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn health_list_contains_only_volumes_with_issues() {
    let memory = Memory::new();
    (0..100).for_each(|number| memory.insert(&id(number)));
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let (mut listed, mut starting_token) = (Vec::new(), String::new());
    loop {
        let request =
            v1::ControllerListVolumeHealthRequest { max_entries: 3, starting_token, ..Default::default() };
        let page =
            served.client.controller().controller_list_volume_health(request).await.unwrap().into_inner();
        assert!(page.entries.len() <= 3 && !page.entries.is_empty());
        listed.extend(page.entries.into_iter().map(|entry| entry.volume_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, (0..10).map(|tens| id(tens * 10 + 7)).collect::<Vec<_>>());
}
