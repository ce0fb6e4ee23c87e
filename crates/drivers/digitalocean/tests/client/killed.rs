//! The driver is killed after each of its requests; the next one finishes the started action and starts none twice.

use std::time::Duration;

use wharf_driver_digitalocean::{Attachments, Client, OperationError};
use wharf_fake_digitalocean::{Fault, FaultEffect};

use crate::support::{Bench, POLLING, REGION, bench, client_options};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Attach,
    Detach,
    Resize,
}

async fn work(attachments: Attachments, work: Work, volume: String) -> Result<(), OperationError> {
    match work {
        Work::Attach => attachments.attach(&volume, 1).await.map(|_| ()),
        Work::Detach => attachments.detach(&volume, 1).await,
        Work::Resize => attachments.resize(&volume, 20).await.map(|_| ()),
    }
}

/// The action never ends by itself, so the driver polls until it is killed.
async fn kill_after(bench: &Bench, requests: usize, what: Work, volume: &str) {
    bench
        .fake
        .add_fault(Fault::new(FaultEffect::ActionNeverEnds).at("POST", "/v2/volumes/*/actions").times(1));
    let task = tokio::spawn(work(bench.attachments.clone(), what, volume.to_owned()));
    while bench.fake.requests().len() < requests {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    bench.fake.clear_faults();
    bench.fake.change(|state, now| {
        state.actions.values_mut().for_each(|action| _ = action.due.get_or_insert(now + 100));
    });
}

#[tokio::test]
async fn restart_after_each_request_resumes_the_action() {
    for (what, requests) in [Work::Attach, Work::Detach, Work::Resize]
        .into_iter()
        .flat_map(|what| (1..=4).map(move |n| (what, n)))
    {
        let bench = bench().await;
        let volume = match what {
            Work::Detach => bench.attached("pvc-1", 1).await,
            Work::Attach | Work::Resize => bench.volume("pvc-1").await,
        };
        let before = bench.fake.state().actions.len();
        kill_after(&bench, requests, what, &volume.id).await;
        // As a new process, without any state.
        let client = Client::new(client_options(bench.fake.url())).unwrap();
        work(Attachments::new(client, REGION, POLLING), what, volume.id.clone()).await.unwrap();
        let state = bench.fake.state();
        assert_eq!(state.actions.len(), before + 1, "{what:?} after {requests} requests");
        assert_eq!(bench.attached_to(&volume.id), Some(1).filter(|_| what == Work::Attach), "{what:?}");
        let size = if what == Work::Resize { 20 } else { 10 };
        assert_eq!(state.volumes[&volume.id].size_gigabytes, size, "{what:?}");
    }
}
