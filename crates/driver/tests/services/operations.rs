//! One operation a volume at a time, and to its end.

use std::time::Duration;

use tokio::task::JoinHandle;
use tonic::{Code, Response, Status};
use wharf_csi::v1;
use wharf_driver::ServeOptions;

use crate::create;
use crate::memory::{Memory, Served};

/// Begins a create and answers when it runs, waiting at the gate.
async fn begin(
    memory: &Memory,
    served: &Served,
    request: v1::CreateVolumeRequest,
) -> JoinHandle<Result<Response<v1::CreateVolumeResponse>, Status>> {
    let client = served.client.clone();
    let call = tokio::spawn(async move { client.controller().create_volume(request).await });
    memory.has_begun().await;
    call
}

#[tokio::test]
async fn the_second_call_for_a_name_is_aborted() {
    let memory = Memory::gated();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let first = begin(&memory, &served, create("a")).await;
    let other = begin(&memory, &served, create("b")).await;
    let second = served.client.controller().create_volume(create("a")).await;
    assert_eq!(second.unwrap_err().code(), Code::Aborted);
    memory.gate.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap().into_inner().volume.unwrap().volume_id, "v-a");
    assert_eq!(other.await.unwrap().unwrap().into_inner().volume.unwrap().volume_id, "v-b");
}

#[tokio::test]
async fn a_caller_that_hangs_up_neither_stops_the_operation_nor_lets_another_in() {
    let memory = Memory::gated();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let call = begin(&memory, &served, create("a")).await;
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
    assert!(memory.has("v-a"), "it ran to its end though nobody waited");
    memory.gate.add_permits(1);
    served.client.controller().create_volume(create("a")).await.unwrap();
}

#[tokio::test]
async fn a_clone_and_a_delete_of_its_source_exclude_each_other() {
    use v1::volume_content_source::{Type, VolumeSource};

    let memory = Memory::gated();
    memory.insert("source");
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let source = VolumeSource { volume_id: "source".to_owned() };
    let clone = v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(Type::Volume(source)) }),
        ..create("copy")
    };
    let cloning = begin(&memory, &served, clone).await;
    let delete = v1::DeleteVolumeRequest { volume_id: "source".to_owned(), ..Default::default() };
    let refused = served.client.controller().delete_volume(delete.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    memory.gate.add_permits(1);
    cloning.await.unwrap().unwrap();
    served.client.controller().delete_volume(delete).await.unwrap();
}

#[tokio::test]
async fn a_panic_is_internal_and_the_volume_is_free_again() {
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
async fn a_stop_waits_for_operations_and_takes_the_socket_away() {
    let memory = Memory::gated();
    let mut served = Served::start(memory.driver(), ServeOptions::default()).await;
    begin(&memory, &served, create("a")).await.abort();
    served.stop();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!memory.has("v-a"));
    memory.gate.add_permits(1);
    let path = served.endpoint.path().to_owned();
    served.stopped().await;
    assert!(memory.has("v-a"), "the operation nobody waits for any more came to its end first");
    assert!(!path.exists());
}
