//! The API rules as tables: state, request, response.

mod properties;

use serde_json::{Value, json};

use super::*;
use crate::state::{Droplet, Status};

/// A fake with two droplets in nyc3 and one in ams3, and its own clock.
struct Cloud {
    state: State,
    settings: FakeSettings,
    now: Millis,
}

impl Cloud {
    fn new() -> Self {
        let droplet = |id, region: &str| {
            let name = format!("node-{id}");
            (id, Droplet { id, name, region: region.into(), tags: vec![], created: 0 })
        };
        let droplets = [droplet(1, "nyc3"), droplet(2, "nyc3"), droplet(3, "ams3")].into();
        Self {
            state: State { droplets, ..State::default() },
            settings: FakeSettings::default(),
            now: 1_456_938_049_000,
        }
    }

    fn with(settings: impl FnOnce(&mut FakeSettings)) -> Self {
        let mut cloud = Self::new();
        settings(&mut cloud.settings);
        cloud
    }

    fn request_with_fault(
        &mut self,
        fault: Option<&FaultEffect>,
        method: &str,
        path: &str,
        body: Value,
    ) -> ApiResponse {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let request = Request {
            method: method.into(),
            path: path.into(),
            query: query.into(),
            body: if body.is_null() { vec![] } else { body.to_string().into_bytes() },
            base: "http://h".into(),
        };
        self.state.advance(self.now);
        let (state, settings, now) = (&mut self.state, &self.settings, self.now);
        response(&mut RequestContext { state, settings, request: &request, now, fault })
    }

    fn request(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let response = self.request_with_fault(None, method, path, body);
        (response.status, response.body.unwrap_or(Value::Null))
    }

    fn get(&mut self, path: &str) -> Value {
        let (status, body) = self.request("GET", path, Value::Null);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Creates a volume of 2 GiB.
    fn volume(&mut self, name: &str, region: &str) -> String {
        let body = json!({ "name": name, "region": region, "size_gigabytes": 2 });
        let (status, body) = self.request("POST", "/v2/volumes", body);
        assert_eq!(status, 201, "{body}");
        body["volume"]["id"].as_str().unwrap().to_owned()
    }

    fn act(&mut self, volume: &str, body: Value) -> (u16, Value) {
        self.request("POST", &format!("/v2/volumes/{volume}/actions"), body)
    }

    fn attach(&mut self, volume: &str, droplet: u64) -> (u16, Value) {
        self.act(volume, json!({ "type": "attach", "droplet_id": droplet }))
    }

    fn detach(&mut self, volume: &str, droplet: u64) -> (u16, Value) {
        self.act(volume, json!({ "type": "detach", "droplet_id": droplet }))
    }

    fn wait(&mut self) {
        self.now += 1_000;
        self.state.advance(self.now);
    }

    fn snapshot(&mut self, volume: &str, name: &str) -> (u16, Value) {
        self.request("POST", &format!("/v2/volumes/{volume}/snapshots"), json!({ "name": name }))
    }
}

fn refused(response: &(u16, Value)) -> (u16, &str) {
    (response.0, response.1["message"].as_str().unwrap_or_default())
}

#[test]
fn missing_objects_are_not_found() {
    let mut cloud = Cloud::new();
    let volume = cloud.volume("a", "nyc3");
    let uuid = "506f78a4-e098-11e5-ad9f-000f53306ae1";
    let table = [
        ("GET", format!("/v2/volumes/{uuid}")),
        ("GET", "/v2/volumes/not-a-uuid".into()),
        ("DELETE", format!("/v2/volumes/{uuid}")),
        ("DELETE", "/v2/volumes?name=x&region=nyc3".into()),
        ("DELETE", "/v2/volumes?name=a&region=ams3".into()),
        ("GET", format!("/v2/volumes/{uuid}/snapshots")),
        ("POST", format!("/v2/volumes/{uuid}/snapshots")),
        ("GET", format!("/v2/volumes/{uuid}/actions")),
        ("POST", format!("/v2/volumes/{uuid}/actions")),
        ("POST", "/v2/volumes/actions".into()),
        ("GET", format!("/v2/volumes/{volume}/actions/1")),
        ("GET", format!("/v2/volumes/snapshots/{uuid}")),
        ("DELETE", format!("/v2/volumes/snapshots/{uuid}")),
        ("GET", format!("/v2/snapshots/{uuid}")),
        ("DELETE", format!("/v2/snapshots/{uuid}")),
        ("GET", "/v2/actions/1".into()),
        ("GET", "/v2/droplets/9".into()),
        ("GET", "/v2/droplets/x".into()),
        ("DELETE", "/v2/droplets/9".into()),
        ("POST", "/v2/tags/x/resources".into()),
        ("GET", "/v2/tags/x".into()),
        ("GET", "/v2/nothing".into()),
        ("PUT", "/v2/volumes".into()),
        ("GET", "/".into()),
    ];
    for (method, path) in table {
        let before = cloud.state.clone();
        let body = json!({ "name": "x", "type": "attach", "droplet_id": 1, "volume_name": "x", "region": "nyc3",
            "resources": [] });
        let response = cloud.request(method, &path, body);
        let message = "The resource you requested could not be found.";
        assert_eq!(refused(&response), (404, message), "{method} {path}");
        assert_eq!(response.1["id"], "not_found");
        assert_eq!(cloud.state, before, "{method} {path}");
    }
}

#[test]
fn invalid_volumes_are_refused() {
    let mut cloud = Cloud::new();
    cloud.volume("taken", "nyc3");
    let good = json!({ "name": "a", "region": "nyc3", "size_gigabytes": 1 });
    let table = [
        (json!({ "name": "" }), 422, "Name"),
        (json!({ "name": null }), 422, "Name"),
        (json!({ "name": "A" }), 422, "Name"),
        (json!({ "name": "a".repeat(65) }), 422, "Name"),
        (json!({ "region": "" }), 422, "Region"),
        (json!({ "region": "mars1" }), 422, "Region"),
        (json!({ "size_gigabytes": 0 }), 422, "Size"),
        (json!({ "size_gigabytes": -1 }), 422, "Size"),
        (json!({ "size_gigabytes": 16385 }), 422, "Size"),
        (json!({ "size_gigabytes": "1" }), 400, "body"),
        (json!({ "snapshot_id": "506f78a4-e098-11e5-ad9f-000f53306ae1" }), 404, "could not be found"),
        (json!({ "filesystem_type": "ntfs" }), 422, "Filesystem"),
        (json!({ "tags": ["not a tag"] }), 422, "Tags"),
        (json!({ "name": "taken" }), 409, "already exists"),
    ];
    for (change, status, word) in table {
        let mut body = good.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let before = cloud.state.clone();
        let response = cloud.request("POST", "/v2/volumes", body);
        assert_eq!(response.0, status, "{change} gave {response:?}");
        assert!(refused(&response).1.contains(word), "{change} gave {response:?}");
        assert_eq!(cloud.state, before, "{change}");
    }
    // Empty values for unset fields, and the same name in another region.
    let unset = json!({ "snapshot_id": "", "filesystem_type": "", "description": "", "tags": null });
    for region in ["nyc3", "ams3"] {
        let mut body = json!({ "name": "a", "region": region, "size_gigabytes": 16384 });
        body.as_object_mut().unwrap().extend(unset.as_object().unwrap().clone());
        assert_eq!(cloud.request("POST", "/v2/volumes", body).0, 201);
    }
}

#[test]
fn volumes_are_found_by_name_and_region() {
    let mut cloud = Cloud::new();
    for (name, region) in [("a", "nyc3"), ("b", "nyc3"), ("a", "ams3")] {
        cloud.now += 1;
        cloud.volume(name, region);
    }
    let table =
        [("", 3), ("name=a", 2), ("region=nyc3", 2), ("name=a&region=nyc3", 1), ("name=c", 0), ("name=", 3)];
    for (query, count) in table {
        let body = cloud.get(&format!("/v2/volumes?{query}"));
        assert_eq!(body["volumes"].as_array().unwrap().len(), count, "{query}");
        assert_eq!(body["meta"]["total"], count, "{query}");
    }
    assert_eq!(cloud.request("DELETE", "/v2/volumes?name=a&region=ams3", Value::Null).0, 204);
    assert_eq!(cloud.get("/v2/volumes?name=a")["volumes"][0]["region"]["slug"], "nyc3");
}

#[test]
fn volume_has_the_api_json() {
    let mut cloud = Cloud::new();
    let body = json!({ "name": "pvc-1", "region": "nyc3", "size_gigabytes": 10, "description": "mine",
        "filesystem_type": "ext4", "filesystem_label": "l", "tags": ["k8s"] });
    let (_, made) = cloud.request("POST", "/v2/volumes", body);
    let volume = &made["volume"];
    assert_eq!(volume["id"].as_str().unwrap().len(), 36);
    assert_eq!(volume["created_at"], "2016-03-02T17:00:49Z");
    assert_eq!(volume["droplet_ids"], json!([]));
    assert_eq!(volume["region"]["name"], "New York 3");
    for (field, value) in [
        ("name", json!("pvc-1")),
        ("size_gigabytes", json!(10)),
        ("description", json!("mine")),
        ("filesystem_type", json!("ext4")),
        ("filesystem_label", json!("l")),
        ("tags", json!(["k8s"])),
    ] {
        assert_eq!(volume[field], value, "{field}");
    }
    assert_eq!(cloud.get("/v2/tags/k8s")["tag"]["resources"]["volumes"]["count"], 1);
}

#[test]
fn attach_completes_after_the_delay() {
    let mut cloud = Cloud::new();
    let volume = cloud.volume("a", "nyc3");
    let (status, body) = cloud.attach(&volume, 1);
    let action = &body["action"];
    assert_eq!((status, action["status"].as_str()), (202, Some("in-progress")));
    assert_eq!(action["type"], "attach_volume");
    assert_eq!((&action["resource_id"], &action["completed_at"]), (&Value::Null, &Value::Null));
    assert!(action["id"].is_u64());
    let paths =
        [format!("/v2/volumes/{volume}/actions/{}", action["id"]), format!("/v2/actions/{}", action["id"])];
    cloud.now += 999;
    assert_eq!(cloud.get(&format!("/v2/volumes/{volume}"))["volume"]["droplet_ids"], json!([]));
    assert_eq!(cloud.get("/v2/droplets/1")["droplet"]["locked"], true);
    cloud.now += 1;
    for path in paths {
        let action = cloud.get(&path)["action"].clone();
        assert_eq!(action["status"], "completed");
        assert_eq!(action["completed_at"], "2016-03-02T17:00:50Z");
    }
    assert_eq!(cloud.get(&format!("/v2/volumes/{volume}"))["volume"]["droplet_ids"], json!([1]));
    assert_eq!(cloud.get("/v2/droplets/1")["droplet"]["volume_ids"], json!([volume]));
    for path in
        [format!("/v2/volumes/{volume}/actions"), "/v2/actions".into(), "/v2/droplets/1/actions".into()]
    {
        assert_eq!(cloud.get(&path)["meta"]["total"], 1, "{path}");
    }
}

#[test]
fn droplet_and_volume_have_one_pending_action() {
    let mut cloud = Cloud::with(|settings| settings.volumes_per_droplet = 2);
    let (a, b, c) = (cloud.volume("a", "nyc3"), cloud.volume("b", "nyc3"), cloud.volume("c", "nyc3"));
    let far = cloud.volume("a", "ams3");
    let pending = (422, "Droplet already has a pending event.");
    assert_eq!(cloud.attach(&a, 1).0, 202);
    assert_eq!(refused(&cloud.attach(&a, 1)), pending);
    assert_eq!(refused(&cloud.attach(&b, 1)), pending);
    assert_eq!(refused(&cloud.detach(&a, 1)), pending);
    assert_eq!(refused(&cloud.attach(&a, 2)), (422, "Volume already has a pending event."));
    assert_eq!(cloud.request("DELETE", &format!("/v2/volumes/{a}"), Value::Null).0, 409);
    assert_eq!(cloud.attach(&b, 2).0, 202, "another droplet is not blocked");
    cloud.wait();
    let attached = (422, "This volume is already attached");
    assert_eq!(refused(&cloud.attach(&a, 1)), attached);
    assert_eq!(refused(&cloud.attach(&a, 2)), attached);
    let gone = (422, "Attachment not found");
    assert_eq!(refused(&cloud.detach(&a, 2)), gone);
    assert_eq!(refused(&cloud.detach(&c, 1)), gone);
    assert_eq!(refused(&cloud.attach(&far, 1)).0, 422);
    assert_eq!(refused(&cloud.attach(&c, 9)).0, 404);
    assert_eq!(refused(&cloud.act(&c, json!({ "type": "attach" }))).0, 422);
    assert_eq!(refused(&cloud.act(&c, json!({ "type": "explode", "droplet_id": 1 }))).0, 422);
    assert_eq!(cloud.attach(&c, 1).0, 202);
    cloud.wait();
    let d = cloud.volume("d", "nyc3");
    assert_eq!(refused(&cloud.attach(&d, 1)), (422, "cannot attach more volumes to the Droplet"));
    assert_eq!(refused(&cloud.request("DELETE", &format!("/v2/volumes/{a}"), Value::Null)).0, 409);
    assert_eq!(cloud.detach(&a, 1).0, 202);
    cloud.wait();
    assert_eq!(cloud.request("DELETE", &format!("/v2/volumes/{a}"), Value::Null).0, 204);
}

#[test]
fn actions_can_be_started_by_volume_name() {
    let mut cloud = Cloud::new();
    let volume = cloud.volume("a", "nyc3");
    let body = |kind: &str, region: &str| json!({ "type": kind, "droplet_id": 1, "volume_name": "a", "region": region, "size_gigabytes": 5 });
    assert_eq!(cloud.request("POST", "/v2/volumes/actions", body("attach", "ams3")).0, 404);
    assert_eq!(cloud.request("POST", "/v2/volumes/actions", body("resize", "nyc3")).0, 422);
    assert_eq!(cloud.request("POST", "/v2/volumes/actions", body("attach", "nyc3")).0, 202);
    cloud.wait();
    assert_eq!(cloud.state.volumes_of(1).next().unwrap().id, volume);
}

#[test]
fn resize_only_grows() {
    let mut cloud = Cloud::with(|settings| settings.capacity_gigabytes = 10);
    let volume = cloud.volume("a", "nyc3");
    let resize = |size: i64| json!({ "type": "resize", "size_gigabytes": size, "region": "nyc3" });
    for (size, status) in [(0, 422), (-1, 422), (1, 422), (2, 422), (16385, 422), (11, 403)] {
        assert_eq!(cloud.act(&volume, resize(size)).0, status, "{size}");
    }
    let (status, body) = cloud.act(&volume, resize(10));
    assert_eq!((status, body["action"]["type"].as_str()), (202, Some("resize_volume")));
    assert_eq!(cloud.get(&format!("/v2/volumes/{volume}"))["volume"]["size_gigabytes"], 2);
    cloud.wait();
    assert_eq!(cloud.get(&format!("/v2/volumes/{volume}"))["volume"]["size_gigabytes"], 10);
}

#[test]
fn account_limits_are_enforced() {
    let mut cloud = Cloud::with(|settings| (settings.volume_limit, settings.capacity_gigabytes) = (2, 5));
    assert_eq!(cloud.get("/v2/account")["account"]["volume_limit"], 2);
    let volume = cloud.volume("a", "nyc3");
    let body = json!({ "name": "b", "region": "nyc3", "size_gigabytes": 4 });
    let over = cloud.request("POST", "/v2/volumes", body);
    assert_eq!(over.0, 403);
    assert!(refused(&over).1.contains("capacity limit exceeded"), "{over:?}");
    cloud.volume("b", "nyc3");
    assert_eq!(cloud.snapshot(&volume, "s").0, 403);
    cloud.settings.capacity_gigabytes = 0;
    let body = json!({ "name": "c", "region": "nyc3", "size_gigabytes": 1 });
    assert!(refused(&cloud.request("POST", "/v2/volumes", body)).1.contains("capacity limit exceeded"));
}

#[test]
fn snapshots_are_rate_limited_and_outlive_their_volume() {
    let mut cloud = Cloud::new();
    let volume = cloud.volume("a", "nyc3");
    let made = cloud.request_with_fault(
        None,
        "POST",
        &format!("/v2/volumes/{volume}/snapshots"),
        json!({ "name": "s" }),
    );
    assert_eq!(made.status, 201);
    let body = made.body.unwrap();
    let id = body["snapshot"]["id"].as_str().unwrap().to_owned();
    assert_eq!(made.copy, Some((volume.clone(), id.clone())));
    assert_eq!(body["snapshot"]["resource_id"], volume);
    assert_eq!(body["snapshot"]["min_disk_size"], 2);
    assert_eq!(cloud.snapshot(&volume, "s").0, 409, "the name is checked before the rate limit");
    let limited = cloud.snapshot(&volume, "t");
    let message = "failed to create snapshot: this operation is rate-limited - one request per 10m0s";
    assert_eq!(refused(&limited), (429, message));
    cloud.now += 600_000;
    assert_eq!(cloud.snapshot(&volume, "t").0, 201);
    assert_eq!(cloud.snapshot(&volume, "").0, 422);
    cloud.settings.snapshot_interval_ms = 0;
    assert_eq!(cloud.snapshot(&volume, "u").0, 201, "the rule is disabled");
    let table = [
        ("/v2/snapshots".to_owned(), 3),
        ("/v2/snapshots?resource_type=volume".into(), 3),
        ("/v2/snapshots?resource_type=droplet".into(), 0),
        ("/v2/snapshots?region=ams3".into(), 0),
        (format!("/v2/volumes/{volume}/snapshots"), 3),
    ];
    for (path, total) in table {
        assert_eq!(cloud.get(&path)["meta"]["total"], total, "{path}");
    }
    let not_one = cloud.request("GET", &format!("/v2/snapshots/{volume}"), Value::Null);
    assert_eq!(refused(&not_one), (400, "the resource is not a snapshot"));
    // Snapshots outlive their volume; a restored volume starts with the size of its snapshot.
    assert_eq!(cloud.request("DELETE", &format!("/v2/volumes/{volume}"), Value::Null).0, 204);
    let copy =
        |region: &str| json!({ "name": "b", "region": region, "size_gigabytes": 9, "snapshot_id": id });
    assert_eq!(cloud.request("POST", "/v2/volumes", copy("ams3")).0, 422);
    let made = cloud.request_with_fault(None, "POST", "/v2/volumes", copy("nyc3"));
    let volume = made.body.unwrap()["volume"].clone();
    assert_eq!(volume["size_gigabytes"], 2);
    assert_eq!(made.copy, Some((id.clone(), volume["id"].as_str().unwrap().to_owned())));
    for path in [format!("/v2/snapshots/{id}"), format!("/v2/volumes/snapshots/{id}")] {
        assert_eq!(cloud.get(&path)["snapshot"]["name"], "s");
    }
    assert_eq!(cloud.request("DELETE", &format!("/v2/snapshots/{id}"), Value::Null).0, 204);
    assert_eq!(cloud.request("DELETE", &format!("/v2/snapshots/{id}"), Value::Null).0, 404);
}

#[test]
fn deleting_a_droplet_detaches_its_volumes() {
    let mut cloud = Cloud::new();
    let (a, b) = (cloud.volume("a", "nyc3"), cloud.volume("b", "nyc3"));
    cloud.attach(&a, 1);
    cloud.wait();
    let (_, attach) = cloud.attach(&b, 1);
    assert_eq!(cloud.request("DELETE", "/v2/droplets/1", Value::Null).0, 204);
    assert!(cloud.state.volumes.values().all(|volume| volume.attached.is_none()));
    assert_eq!(cloud.get(&format!("/v2/actions/{}", attach["action"]["id"]))["action"]["status"], "errored");
    assert_eq!(cloud.attach(&a, 1).0, 404);
    assert_eq!(cloud.attach(&a, 2).0, 202);
}

#[test]
fn droplets_are_found_by_tag_and_name() {
    let mut cloud = Cloud::new();
    cloud.state.droplets.get_mut(&2).unwrap().tags.push("k8s".into());
    for (query, total) in [("", 3), ("tag_name=k8s", 1), ("name=node-3", 1), ("name=x", 0)] {
        assert_eq!(cloud.get(&format!("/v2/droplets?{query}"))["meta"]["total"], total, "{query}");
    }
}

#[test]
fn tags_are_created_assigned_and_removed() {
    let mut cloud = Cloud::new();
    let volume = cloud.volume("a", "nyc3");
    let on = |id: &str, kind: &str| json!({ "resources": [{ "resource_id": id, "resource_type": kind }] });
    let path = "/v2/tags/k8s:1/resources";
    assert_eq!(cloud.request("POST", path, on(&volume, "volume")).0, 404, "the tag does not exist yet");
    assert_eq!(cloud.request("POST", "/v2/tags", json!({ "name": "a b" })).0, 400);
    assert_eq!(cloud.request("POST", "/v2/tags", json!({ "name": "k8s:1" })).0, 201);
    for _ in 0..2 {
        assert_eq!(cloud.request("POST", path, on(&volume, "volume")).0, 204);
        assert_eq!(cloud.state.volumes[&volume].tags, ["k8s:1"]);
    }
    assert_eq!(cloud.request("POST", path, on("2", "droplet")).0, 204);
    assert_eq!(cloud.request("POST", path, on(&volume, "database")).0, 422);
    assert_eq!(cloud.request("POST", path, on("x", "volume")).0, 404);
    assert_eq!(cloud.get("/v2/tags")["tags"][0]["resources"]["count"], 2);
    assert_eq!(cloud.request("DELETE", path, on("2", "droplet")).0, 204);
    assert_eq!(cloud.request("DELETE", "/v2/tags/k8s:1", Value::Null).0, 204);
    assert!(cloud.state.volumes[&volume].tags.is_empty());
}

/// (fault, status in the 202, status after an hour, whether it is attached then)
#[test]
fn faults_determine_the_end_of_an_action() {
    let table = [
        (None, "in-progress", Status::Completed, true),
        (Some(FaultEffect::ActionDelayMs(0)), "completed", Status::Completed, true),
        (Some(FaultEffect::ActionErrored), "in-progress", Status::Errored, false),
        (Some(FaultEffect::ActionNeverEnds), "in-progress", Status::InProgress, false),
    ];
    for (fault, first, last, attached) in table {
        let mut cloud = Cloud::new();
        let volume = cloud.volume("a", "nyc3");
        let path = format!("/v2/volumes/{volume}/actions");
        let body = json!({ "type": "attach", "droplet_id": 1 });
        let response = cloud.request_with_fault(fault.as_ref(), "POST", &path, body);
        assert_eq!(response.body.unwrap()["action"]["status"], first, "{fault:?}");
        cloud.now += 3_600_000;
        cloud.state.advance(cloud.now);
        let action = cloud.state.actions.values().next().unwrap();
        assert_eq!(action.status, last, "{fault:?}");
        assert_eq!(cloud.state.volumes[&volume].attached.is_some(), attached, "{fault:?}");
    }
}

#[test]
fn regions_are_listed() {
    let mut cloud = Cloud::new();
    let body = cloud.get("/v2/regions?per_page=200");
    let regions = body["regions"].as_array().unwrap();
    assert!(regions.iter().any(|region| region["slug"] == "nyc3" && region["available"] == true));
    assert_eq!(body["links"], json!({}));
}
