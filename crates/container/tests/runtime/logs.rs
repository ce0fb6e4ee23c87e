//! Container logs: path, format, options, following and rotation.

use std::fs;

use wharf_container::{ContainerSpec, LogError, LogOptions, LogStream};

use crate::harness::{TestRuntime, sh, within};

#[tokio::test]
async fn log_path_and_format_match_kubelet() {
    let test = TestRuntime::new();
    let spec = ContainerSpec { attempt: 2, ..sh("a", "echo one; printf two") };
    let id = test.runtime.start(spec).await.unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    let path = "logs/default_pod_11111111-2222-3333-4444-555555555555/a/2.log";
    let text = fs::read_to_string(test.directory.path().join(path)).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    assert_eq!(lines[0][1..], ["stdout", "F", "one"]);
    assert_eq!(lines[1][1..], ["stdout", "P", "two"]);
    assert!(lines[0][0].len() == 30 && lines[0][0].ends_with('Z') && lines[0][0] <= lines[1][0]);
    assert_eq!(test.log(&id, LogOptions::default()).await, "one\ntwo");
}

#[tokio::test]
async fn log_options_select_lines() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "echo 1; echo 2; sleep 0.3; echo 3; echo e >&2")).await.unwrap();
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    let with = LogOptions::default;
    assert_eq!(test.log(&id, LogOptions { tail: Some(0), ..with() }).await, "");
    let tail = test.log(&id, LogOptions { tail: Some(3), ..with() }).await;
    assert!(tail == "2\n3\ne\n" || tail == "2\ne\n3\n", "{tail}");
    assert_eq!(test.log(&id, LogOptions { stream: Some(LogStream::Stderr), ..with() }).await, "e\n");
    assert_eq!(test.log(&id, LogOptions { limit_bytes: Some(3), ..with() }).await, "1\n2");
    let since = wharf_model::Time(exit.started.0 + 200);
    let late = test.log(&id, LogOptions { since: Some(since), ..with() }).await;
    assert!(late.contains('3') && !late.contains('2'), "{late}");
    let stamped = test.log(&id, LogOptions { timestamps: true, tail: Some(1), ..with() }).await;
    assert_eq!(stamped.len(), "2026-01-01T00:00:00.000000000Z x\n".len(), "{stamped}");
}

#[tokio::test]
async fn follow_ends_when_the_container_exits() {
    let test = TestRuntime::new();
    let script = "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; exit 1";
    let id = test.runtime.start(sh("a", script)).await.unwrap();
    let all = test.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    assert_eq!(all, "1\n2\n3\n4\n5\n");
    let again = test.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    assert_eq!(again, all, "following the log of an exited container ends");
}

#[tokio::test]
async fn follow_continues_across_rotation() {
    let test = TestRuntime::with(|settings| (settings.log_bytes, settings.log_files) = (2000, 3));
    let script = "i=0; while test $i -lt 200; do echo line $i; i=$((i+1)); sleep 0.002; done";
    let id = test.runtime.start(sh("a", script)).await.unwrap();
    let text = test.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"line 0"));
    assert_eq!(lines.last(), Some(&"line 199"));
    let directory = test.directory.path().join("logs/default_pod_11111111-2222-3333-4444-555555555555/a");
    let files: Vec<u64> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(files.len(), 3, "at most log_files");
    assert!(files.iter().all(|length| *length <= 2000), "{files:?}");
}

#[tokio::test]
async fn long_lines_are_reproduced() {
    let test = TestRuntime::new();
    let id =
        test.runtime.start(sh("a", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")).await.unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    assert!(test.log(&id, LogOptions::default()).await == format!("{}\nend\n", "x".repeat(300_000)));
}

#[tokio::test]
async fn log_of_an_unknown_container_is_an_error() {
    let test = TestRuntime::new();
    let id = sh("never", "").id();
    assert!(matches!(
        test.runtime.logs(&id, LogOptions::default()).await,
        Err(LogError::NoSuchContainer(missing)) if missing == id
    ));
}
