//! Invariants that hold for any requests in any order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Operation {
    Create(u8),
    Delete(u8),
    Attach(u8, u64),
    Detach(u8, u64),
    Resize(u8, u64),
    DeleteDroplet(u64),
    Wait(Millis),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let (volume, droplet) = (0..6u8, 1..4u64);
    let operation = prop_oneof![
        3 => volume.clone().prop_map(Operation::Create),
        1 => volume.clone().prop_map(Operation::Delete),
        6 => (volume.clone(), droplet.clone()).prop_map(|(volume, droplet)| Operation::Attach(volume, droplet)),
        3 => (volume.clone(), droplet.clone()).prop_map(|(volume, droplet)| Operation::Detach(volume, droplet)),
        1 => (volume, 1..9u64).prop_map(|(volume, size)| Operation::Resize(volume, size)),
        1 => droplet.prop_map(Operation::DeleteDroplet),
        4 => (1..1500i64).prop_map(Operation::Wait),
    ];
    prop::collection::vec(operation, 1..80)
}

fn id_of(cloud: &Cloud, number: u8) -> String {
    let name = format!("v{number}");
    cloud.state.volumes.values().find(|volume| volume.name == name).map_or(name, |volume| volume.id.clone())
}

fn unique<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

proptest! {
    #[test]
    fn state_invariants_hold_for_any_requests(operations in operations()) {
        let mut cloud = Cloud::with(|settings| settings.volumes_per_droplet = 2);
        for operation in operations {
            let before = cloud.state.clone();
            let response = match &operation {
                Operation::Create(number) => {
                    let body = json!({ "name": format!("v{number}"), "region": "nyc3", "size_gigabytes": 2 });
                    cloud.request("POST", "/v2/volumes", body)
                }
                Operation::Delete(number) => {
                    let path = format!("/v2/volumes/{}", id_of(&cloud, *number));
                    cloud.request("DELETE", &path, Value::Null)
                }
                Operation::Attach(number, droplet) => {
                    let id = id_of(&cloud, *number);
                    cloud.attach(&id, *droplet)
                }
                Operation::Detach(number, droplet) => {
                    let id = id_of(&cloud, *number);
                    cloud.detach(&id, *droplet)
                }
                Operation::Resize(number, size) => {
                    let id = id_of(&cloud, *number);
                    cloud.act(&id, json!({ "type": "resize", "size_gigabytes": size }))
                }
                Operation::DeleteDroplet(id) => cloud.request("DELETE", &format!("/v2/droplets/{id}"), Value::Null),
                Operation::Wait(millis) => {
                    cloud.now += millis;
                    cloud.state.advance(cloud.now);
                    (200, Value::Null)
                }
            };
            let state = &cloud.state;
            prop_assert!(response.0 < 500, "{operation:?} gave {response:?}");
            prop_assert!(response.0 < 400 || *state == before, "{operation:?} was refused but had an effect");
            for droplet in 1..4 {
                prop_assert!(state.volumes_of(droplet).count() <= 2, "too many volumes on {droplet}");
            }
            prop_assert!(unique(state.pending().filter_map(|action| action.kind.droplet())));
            prop_assert!(unique(state.pending().map(|action| &action.volume)));
            prop_assert!(unique(state.volumes.values().map(|volume| &volume.name)));
            for action in state.pending() {
                prop_assert!(state.volumes.contains_key(&action.volume), "{action:?} of a deleted volume");
            }
            for volume in state.volumes.values() {
                let droplet = volume.attached.map(|place| place.droplet);
                prop_assert!(droplet.is_none_or(|droplet| state.droplets.contains_key(&droplet)), "{volume:?}");
                let size = before.volumes.get(&volume.id).map_or(0, |volume| volume.size_gigabytes);
                prop_assert!(volume.size_gigabytes >= size, "{volume:?} has shrunk");
            }
        }
    }
}
