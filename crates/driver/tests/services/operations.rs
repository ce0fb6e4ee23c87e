//! One operation per volume at a time, which runs to its end.

use std::time::Duration;

use tokio::task::JoinHandle;
use tonic::{Code, Response, Status};
use wharf_csi::v1;
use wharf_driver::ServeOptions;

use crate::create;
use crate::memory::{Memory, Served};

/// Starts a create and returns when it waits at the gate.
async fn start_create(
    memory: &Memory,
    served: &Served,
    request: v1::CreateVolumeRequest,
) -> JoinHandle<Result<Response<v1::CreateVolumeResponse>, Status>> {
    let client = served.client.clone();
    let call = tokio::spawn(async move { client.controller().create_volume(request).await });
    memory.wait_for_create().await;
    call
}

#[tokio::test]
async fn second_call_for_a_name_is_aborted() {
    let memory = Memory::gated();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let first = start_create(&memory, &served, create("a")).await;
    let other = start_create(&memory, &served, create("b")).await;
    let second = served.client.controller().create_volume(create("a")).await;
    assert_eq!(second.unwrap_err().code(), Code::Aborted);
    memory.gate.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap().into_inner().volume.unwrap().volume_id, "v-a");
    assert_eq!(other.await.unwrap().unwrap().into_inner().volume.unwrap().volume_id, "v-b");
}

#[tokio::test]
async fn operation_continues_and_stays_exclusive_after_the_caller_disconnects() {
    let memory = Memory::gated();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let call = start_create(&memory, &served, create("a")).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let status = served.client.controller().create_volume(create("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "the first one still runs");

    memory.gate.add_permits(1);
    for _ in 0..1000 {
        if memory.has("v-a") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(memory.has("v-a"), "the operation must run to its end without a caller");
    memory.gate.add_permits(1);
    served.client.controller().create_volume(create("a")).await.unwrap();
}

#[tokio::test]
async fn clone_and_delete_of_its_source_exclude_each_other() {
    use v1::volume_content_source::{Type, VolumeSource};

    let memory = Memory::gated();
    memory.insert("source");
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let source = VolumeSource { volume_id: "source".to_owned() };
    let clone = v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(Type::Volume(source)) }),
        ..create("copy")
    };
    let cloning = start_create(&memory, &served, clone).await;
    let delete = v1::DeleteVolumeRequest { volume_id: "source".to_owned(), ..Default::default() };
    let refused = served.client.controller().delete_volume(delete.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    memory.gate.add_permits(1);
    cloning.await.unwrap().unwrap();
    served.client.controller().delete_volume(delete).await.unwrap();
}

#[tokio::test]
async fn panic_is_internal_and_releases_the_volume() {
    let served = Served::start(Memory::new().driver(), ServeOptions::default()).await;
    let expand = v1::ControllerExpandVolumeRequest {
        volume_id: "panic".to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1, limit_bytes: 0 }),
        ..Default::default()
    };
    for _ in 0..2 {
        let status = served.client.controller().controller_expand_volume(expand.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
    }
}

#[tokio::test]
async fn shutdown_waits_for_operations_and_removes_the_socket() {
    let memory = Memory::gated();
    let mut served = Served::start(memory.driver(), ServeOptions::default()).await;
    start_create(&memory, &served, create("a")).await.abort();
    served.stop();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!memory.has("v-a"));
    memory.gate.add_permits(1);
    let path = served.endpoint.path().to_owned();
    served.stopped().await;
    assert!(memory.has("v-a"), "the operation must end before the driver stops");
    assert!(!path.exists());
}
