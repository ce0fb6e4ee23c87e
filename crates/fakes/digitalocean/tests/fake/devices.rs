//! Attached volumes as real loop devices. Needs root.

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions, HalfAttached, HalfAttachedShape, StopError};
use wharf_linux::{BlockDevices as _, Linux};

use crate::client::Client;

const GIB: u64 = 1 << 30;

struct Place {
    root: tempfile::TempDir,
    fake: FakeDigitalOcean,
    client: Client,
}

impl Place {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (fake, client) = begin(root.path()).await;
        Self { root, fake, client }
    }

    fn link(&self, droplet: u64, name: &str) -> PathBuf {
        self.root.path().join(format!("dev/{droplet}/scsi-0DO_Volume_{name}"))
    }

    async fn create(&self, name: &str, snapshot: &str) -> String {
        let body = json!({ "name": name, "region": "nyc3", "size_gigabytes": 1, "snapshot_id": snapshot });
        let created = self.client.post("/v2/volumes", body).await;
        assert_eq!(created.status, 201, "{created:?}");
        created.body["volume"]["id"].as_str().unwrap().to_owned()
    }

    async fn act(&self, volume: &str, body: serde_json::Value) {
        let response = self.client.post(&format!("/v2/volumes/{volume}/actions"), body).await;
        assert_eq!((response.status, response.body["action"]["status"].as_str()), (202, Some("completed")));
    }

    async fn attach(&self, volume: &str, droplet: u64) {
        self.act(volume, json!({ "type": "attach", "droplet_id": droplet })).await;
    }

    async fn detach(&self, volume: &str, droplet: u64) {
        self.act(volume, json!({ "type": "detach", "droplet_id": droplet })).await;
    }
}

async fn begin(root: &Path) -> (FakeDigitalOcean, Client) {
    let options = FakeOptions::new().droplet(1, "nyc3").droplet(2, "nyc3").settings(|settings| {
        settings.action_delay_ms = 0;
        settings.device_delay_ms = 20;
        settings.snapshot_interval_ms = 0;
    });
    let options =
        FakeOptions { state: Some(root.join("state")), attach_real: Some(root.join("dev")), ..options };
    let fake = FakeDigitalOcean::start(options).await.unwrap();
    let client = Client::new(&fake.url());
    (fake, client)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The size of a link's target; `None` if it does not exist.
fn size(link: &Path) -> Option<u64> {
    Linux::new().device_size(&link.canonicalize().ok()?).ok()
}

fn write(link: &Path, text: &str) {
    let file = std::fs::OpenOptions::new().write(true).open(link).unwrap();
    file.write_all_at(text.as_bytes(), 4096).unwrap();
    file.sync_all().unwrap();
}

fn read(link: &Path, length: usize) -> String {
    let mut bytes = vec![0; length];
    std::fs::File::open(link).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The loop devices of a volume's image in this directory. By path, because two fakes can assign the same id.
fn loops_of(root: &tempfile::TempDir, volume: &str) -> usize {
    let image = root.path().join("state/images").join(volume);
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let backing = devices.filter_map(|device| std::fs::read_to_string(device.join("loop/backing_file")).ok());
    backing.filter(|path| path.starts_with(image.to_str().unwrap())).count()
}

#[tokio::test]
async fn device_appears_grows_moves_and_disappears() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    let (here, there) = (place.link(1, "pvc-a"), place.link(2, "pvc-a"));
    place.attach(&id, 1).await;
    until("the device appears", || size(&here) == Some(GIB)).await;
    assert!(!there.exists());
    write(&here, "kept");
    place.act(&id, json!({ "type": "resize", "size_gigabytes": 2 })).await;
    until("the device grows", || size(&here) == Some(2 * GIB)).await;
    place.detach(&id, 1).await;
    until("the device goes", || !here.is_symlink() && loops_of(&place.root, &id) == 0).await;
    place.attach(&id, 2).await;
    until("the device appears at the other droplet", || size(&there) == Some(2 * GIB)).await;
    assert_eq!(read(&there, 4), "kept");
    assert_eq!(place.client.delete("/v2/droplets/2").await.status, 204);
    until("a droplet takes its devices along", || loops_of(&place.root, &id) == 0).await;
    assert_eq!(place.client.delete(&format!("/v2/volumes/{id}")).await.status, 204);
    let images = place.root.path().join("state/images");
    until("the image files are removed", || std::fs::read_dir(&images).unwrap().next().is_none()).await;
    place.fake.stop().await.unwrap();
}

#[tokio::test]
async fn snapshot_preserves_the_data() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    place.attach(&id, 1).await;
    let link = place.link(1, "pvc-a");
    until("the device appears", || size(&link).is_some()).await;
    write(&link, "before");
    let created = place.client.post(&format!("/v2/volumes/{id}/snapshots"), json!({ "name": "s" })).await;
    assert_eq!(created.status, 201);
    write(&link, "after!");
    let copy = place.create("pvc-b", created.body["snapshot"]["id"].as_str().unwrap()).await;
    place.attach(&copy, 2).await;
    let link = place.link(2, "pvc-b");
    until("the copy appears", || size(&link) == Some(GIB)).await;
    assert_eq!(read(&link, 6), "before");
    place.fake.stop().await.unwrap();
    assert_eq!(loops_of(&place.root, &id) + loops_of(&place.root, &copy), 0);
}

#[tokio::test]
async fn attachments_survive_a_restart() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    place.attach(&id, 1).await;
    let link = place.link(1, "pvc-a");
    until("the device appears", || size(&link).is_some()).await;
    write(&link, "kept");
    let Place { root, fake, client: _ } = place;
    fake.stop().await.unwrap();
    assert!(!link.is_symlink());
    assert_eq!(loops_of(&root, &id), 0);
    let (fake, _) = begin(root.path()).await;
    until("the device is back", || size(&link).is_some()).await;
    assert_eq!(read(&link, 4), "kept");
    // As after a kill: an extra link, a link to the wrong target, and the device.
    let stale = root.path().join("dev/2/scsi-0DO_Volume_pvc-z");
    std::fs::create_dir_all(stale.parent().unwrap()).unwrap();
    fake.stop().await.unwrap();
    std::os::unix::fs::symlink("/dev/null", &stale).unwrap();
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let images = root.path().join("state/images");
    let label = wharf_linux::LoopOptions { read_only: false, label: id.clone() };
    Linux::new().loop_attach(&wharf_linux::PathBeneath::new(&images, Path::new(&id)), &label).unwrap();
    let (fake, _) = begin(root.path()).await;
    until("leftovers are taken back", || !stale.is_symlink() && size(&link) == Some(GIB)).await;
    assert_eq!(loops_of(&root, &id), 1);
    fake.stop().await.unwrap();
    assert_eq!(loops_of(&root, &id), 0);
}

#[tokio::test]
async fn partially_attached_device_is_completed() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    let link = place.link(1, "pvc-a");
    place.attach(&id, 1).await;
    until("the device appears", || size(&link).is_some()).await;
    write(&link, "kept");
    place.detach(&id, 1).await;
    until("the device goes", || !link.is_symlink()).await;
    for (shape, seen) in [
        (HalfAttachedShape::Dangling, None),
        (HalfAttachedShape::Empty, Some(0)),
        (HalfAttachedShape::Short, Some(GIB / 2)),
    ] {
        // Long enough for slow machines; advancing the clock ends it.
        place.fake.change_settings(|settings| {
            settings.half_attached = Some(HalfAttached { shape, for_ms: 600_000 });
        });
        place.attach(&id, 1).await;
        until("half of it appears", || link.is_symlink() && size(&link) == seen).await;
        place.fake.advance(Duration::from_secs(601));
        until("the device has its link and size", || size(&link) == Some(GIB)).await;
        assert_eq!(read(&link, 4), "kept");
        place.detach(&id, 1).await;
        until("the device goes", || !link.is_symlink() && loops_of(&place.root, &id) == 0).await;
    }
    place.fake.stop().await.unwrap();
}

/// A failing test does not call stop.
#[tokio::test]
async fn drop_removes_devices_and_links() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    place.attach(&id, 1).await;
    let link = place.link(1, "pvc-a");
    until("the device appears", || size(&link).is_some()).await;
    let Place { root, fake, client: _ } = place;
    drop(fake);
    assert!(!link.is_symlink());
    assert_eq!(loops_of(&root, &id), 0);
}

#[tokio::test]
async fn real_devices_need_a_state_directory() {
    let options = FakeOptions { attach_real: Some("/nowhere".into()), ..FakeOptions::new() };
    assert!(FakeDigitalOcean::start(options).await.is_err());
}

/// A node that crashed with a mounted volume: the API detaches the volume anyway, without waiting.
#[tokio::test]
async fn device_in_use_is_removed_when_released() {
    let place = Place::new().await;
    let id = place.create("pvc-a", "").await;
    place.attach(&id, 1).await;
    let link = place.link(1, "pvc-a");
    until("the device appears", || size(&link).is_some()).await;
    // Held open, as by a mount.
    let excl = rustix::fs::OFlags::EXCL.bits() as i32;
    let held = std::fs::OpenOptions::new().read(true).custom_flags(excl).open(&link).unwrap();
    place.detach(&id, 1).await;
    until("the link goes", || !link.is_symlink()).await;
    assert_eq!(loops_of(&place.root, &id), 1);
    // Another droplet attaches it and has the same data.
    place.attach(&id, 2).await;
    until("the other has it", || size(&place.link(2, "pvc-a")).is_some()).await;
    assert_eq!(loops_of(&place.root, &id), 1);
    let Place { root, fake, client } = place;
    let stopped = fake.stop().await;
    assert!(matches!(stopped, Err(StopError::Devices(_))), "{stopped:?}");
    drop((held, client));
    let (fake, _) = begin(root.path()).await;
    fake.stop().await.unwrap();
    assert_eq!(loops_of(&root, &id), 0);
}
