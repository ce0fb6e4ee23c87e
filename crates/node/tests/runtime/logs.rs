//! Logs of containers.

use std::fs;

use wharf_node::runtime::{ContainerSpec, LogError, LogOptions, LogStream};

use crate::home::{Home, sh, within};

#[tokio::test]
async fn a_log_is_where_kubelet_has_it_and_in_its_format() {
    let home = Home::new();
    let spec = ContainerSpec { attempt: 2, ..sh("a", "echo one; printf two") };
    let id = home.runtime.start(spec).await.unwrap();
    within(home.runtime.exited(&id)).await.unwrap();
    let path = "logs/default_pod_11111111-2222-3333-4444-555555555555/a/2.log";
    let text = fs::read_to_string(home.directory.path().join(path)).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    assert_eq!(lines[0][1..], ["stdout", "F", "one"]);
    assert_eq!(lines[1][1..], ["stdout", "P", "two"]);
    assert!(lines[0][0].len() == 30 && lines[0][0].ends_with('Z') && lines[0][0] <= lines[1][0]);
    assert_eq!(home.log(&id, LogOptions::default()).await, "one\ntwo");
}

#[tokio::test]
async fn parts_of_a_log() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "echo 1; echo 2; sleep 0.3; echo 3; echo e >&2")).await.unwrap();
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    let with = LogOptions::default;
    assert_eq!(home.log(&id, LogOptions { tail: Some(0), ..with() }).await, "");
    let tail = home.log(&id, LogOptions { tail: Some(3), ..with() }).await;
    assert!(tail == "2\n3\ne\n" || tail == "2\ne\n3\n", "{tail}");
    assert_eq!(home.log(&id, LogOptions { stream: Some(LogStream::Stderr), ..with() }).await, "e\n");
    assert_eq!(home.log(&id, LogOptions { limit_bytes: Some(3), ..with() }).await, "1\n2");
    let since = wharf_model::Time(exit.started.0 + 200);
    let late = home.log(&id, LogOptions { since: Some(since), ..with() }).await;
    assert!(late.contains('3') && !late.contains('2'), "{late}");
    let stamped = home.log(&id, LogOptions { timestamps: true, tail: Some(1), ..with() }).await;
    assert_eq!(stamped.len(), "2026-01-01T00:00:00.000000000Z x\n".len(), "{stamped}");
}

#[tokio::test]
async fn a_log_is_followed_to_the_end() {
    let home = Home::new();
    let script = "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; exit 1";
    let id = home.runtime.start(sh("a", script)).await.unwrap();
    let all = home.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    assert_eq!(all, "1\n2\n3\n4\n5\n");
    let again = home.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    assert_eq!(again, all, "one that has ended ends");
}

#[tokio::test]
async fn a_log_is_followed_when_it_is_begun_anew() {
    let home = Home::with(|settings| (settings.log_bytes, settings.log_files) = (2000, 3));
    let script = "i=0; while test $i -lt 200; do echo line $i; i=$((i+1)); sleep 0.002; done";
    let id = home.runtime.start(sh("a", script)).await.unwrap();
    let text = home.log(&id, LogOptions { follow: true, ..LogOptions::default() }).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"line 0"));
    assert_eq!(lines.last(), Some(&"line 199"));
    let directory = home.directory.path().join("logs/default_pod_11111111-2222-3333-4444-555555555555/a");
    let files: Vec<u64> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(files.len(), 3, "not more than were asked for");
    assert!(files.iter().all(|length| *length <= 2000), "{files:?}");
}

#[tokio::test]
async fn bytes_and_long_lines_come_out_as_they_went_in() {
    let home = Home::new();
    let id =
        home.runtime.start(sh("a", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")).await.unwrap();
    within(home.runtime.exited(&id)).await.unwrap();
    assert!(home.log(&id, LogOptions::default()).await == format!("{}\nend\n", "x".repeat(300_000)));
}

#[tokio::test]
async fn no_container_no_log() {
    let home = Home::new();
    let id = sh("never", "").id();
    assert!(matches!(
        home.runtime.logs(&id, LogOptions::default()).await,
        Err(LogError::NoSuchContainer(missing)) if missing == id
    ));
}
