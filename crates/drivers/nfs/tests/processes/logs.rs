//! Logs of workers: they appear among the driver's own.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Instant;

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

use crate::driver::Running;
use crate::support::{ENOUGH, Place};

/// The purge runs in a job worker, whose environment is empty.
#[tokio::test]
async fn worker_writes_its_log_to_the_standard_error_of_the_driver() {
    let place = Place::new();
    let log = place.path("log");
    let driver = Running::start_logging(&place, Stdio::from(std::fs::File::create(&log).unwrap())).await;
    std::fs::create_dir(place.path("export/x")).unwrap();
    let mut controller = driver.client().controller();
    let capability = v1::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
    };
    let parameters = HashMap::from([("server", "nas"), ("share", "/x")]);
    let parameters: HashMap<String, String> =
        parameters.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let end = Instant::now() + ENOUGH;
    for n in 0.. {
        let request = v1::CreateVolumeRequest {
            name: format!("pvc-{n}"),
            volume_capabilities: vec![capability.clone()],
            parameters: parameters.clone().into_iter().collect(),
            ..Default::default()
        };
        let created = controller.create_volume(request).await.unwrap().into_inner();
        let volume_id = created.volume.unwrap().volume_id;
        let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
        controller.delete_volume(delete).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let lines = std::fs::read_to_string(&log).unwrap();
        if let Some(line) = lines.lines().find(|line| line.contains("purged deleted directories")) {
            assert!(line.contains(" INFO ") && line.contains("export=") && line.contains("/x"), "{line}");
            return;
        }
        assert!(Instant::now() < end, "{lines}");
    }
}
