//! Queues under paused time.

use super::*;
use std::collections::HashMap;
use tokio::time::{advance, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn queue() -> Queue<&'static str> {
    let backoff = Backoff::without_jitter(SECOND, 5 * SECOND);
    Queue::new("test", backoff, &Metrics::default())
}

#[test]
fn backoff_counts_the_last_failure() {
    let backoff = Backoff::without_jitter(SECOND, 60 * SECOND);
    for (failures, seconds) in
        [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (32, 60), (33, 60), (u32::MAX, 60)]
    {
        assert_eq!(backoff.after(failures), Duration::from_secs(seconds), "{failures}");
    }
}

/// The next work item if one is available now.
async fn now(queue: &Queue<&'static str>) -> Option<WorkItem<&'static str>> {
    timeout(Duration::ZERO, queue.next()).await.ok().flatten()
}

#[tokio::test(start_paused = true)]
async fn key_is_queued_once_and_never_processed_concurrently() {
    let queue = queue();
    for _ in 0..5 {
        queue.add("a", Priority::Normal);
    }
    assert_eq!(queue.depth(), 1);
    let work = now(&queue).await.unwrap();
    assert!(now(&queue).await.is_none());
    // Added while it is being processed: it runs afterwards, not concurrently.
    queue.add("a", Priority::Normal);
    queue.add("a", Priority::Normal);
    assert!(now(&queue).await.is_none());
    work.done();
    let again = now(&queue).await.unwrap();
    again.done();
    assert!(now(&queue).await.is_none());
    assert_eq!(queue.inner.lock().core.len(), 0, "idle keys are removed");
}

/// The initial resync of all objects does not hold its memory.
#[test]
fn capacity_shrinks_after_the_work() {
    let (mut core, now) = (Core::new(), Instant::now());
    for key in 0..20_000 {
        core.add(&key, Priority::Normal, now);
    }
    // A remaining key does not hold the capacity for all others.
    core.add_at(&20_000, Priority::Normal, now + SECOND);
    while let Some(taken) = core.take(now) {
        core.done(&taken.key);
    }
    assert_eq!(core.len(), 1);
    assert!(core.capacity() < 2_000, "capacity {}", core.capacity());
}

#[tokio::test(start_paused = true)]
async fn backoff_grows_per_key_and_is_reset_by_change_or_success() {
    let queue = queue();
    queue.add("a", Priority::Normal);
    for (failures, seconds) in [(0, 1), (1, 2), (2, 4), (3, 5), (4, 5)] {
        let work = now(&queue).await.unwrap();
        assert_eq!(work.failures(), failures);
        work.retry();
        advance(seconds * SECOND - Duration::from_millis(10)).await;
        assert!(now(&queue).await.is_none(), "failure {failures}");
        advance(Duration::from_millis(20)).await;
    }
    now(&queue).await.unwrap().retry();
    queue.reset_backoff(&"a");
    let work = now(&queue).await.expect("a change does not wait for the backoff");
    assert_eq!(work.failures(), 0);
    work.retry();
    advance(SECOND).await;
    now(&queue).await.expect("the backoff starts again").done();
    queue.add("a", Priority::Normal);
    assert_eq!(now(&queue).await.unwrap().failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn key_added_during_failing_work_is_retried_immediately() {
    let queue = queue();
    queue.add("a", Priority::Normal);
    let work = now(&queue).await.unwrap();
    queue.add("a", Priority::High);
    work.retry();
    assert_eq!(now(&queue).await.unwrap().failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropped_work_item_counts_as_failed() {
    let queue = queue();
    queue.add("a", Priority::Normal);
    drop(now(&queue).await.unwrap());
    assert!(now(&queue).await.is_none());
    advance(SECOND).await;
    assert_eq!(now(&queue).await.unwrap().failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn earliest_delay_applies() {
    let queue = queue();
    queue.add_after("a", 10 * SECOND);
    queue.add_after("a", 3 * SECOND);
    queue.add_after("a", 20 * SECOND);
    let started = Instant::now();
    queue.next().await.unwrap().retry_after(7 * SECOND);
    assert_eq!(started.elapsed().as_secs(), 3);
    queue.next().await.unwrap().done();
    assert_eq!(started.elapsed().as_secs(), 10);
    assert!(timeout(100 * SECOND, queue.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn clearing_failures_keeps_the_delay() {
    let queue = queue();
    queue.add("a", Priority::Normal);
    now(&queue).await.unwrap().retry();
    advance(SECOND).await;
    let work = now(&queue).await.unwrap();
    // Added with a delay while it is being processed.
    queue.add_after("a", 3 * SECOND);
    queue.clear_failures(&"a");
    work.retry_after(60 * SECOND);
    let started = Instant::now();
    let work = queue.next().await.unwrap();
    assert_eq!((started.elapsed().as_secs(), work.failures()), (3, 0));
    work.done();
    queue.clear_failures(&"a");
    assert_eq!(queue.inner.lock().core.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn priorities_are_weighted_without_starvation() {
    const KEYS: usize = 3000;
    let queue = Queue::new("test", Backoff::default(), &Metrics::default());
    for number in 0..KEYS {
        let priority = [Priority::High, Priority::Normal, Priority::Low][number % 3];
        queue.add((priority, number), priority);
    }
    let mut counts: HashMap<Priority, usize> = HashMap::new();
    for _ in 0..210 {
        let work = queue.next().await.unwrap();
        *counts.entry(work.key().0).or_default() += 1;
        work.done();
    }
    assert_eq!(counts, HashMap::from([(Priority::High, 160), (Priority::Normal, 40), (Priority::Low, 10)]));
}

#[tokio::test(start_paused = true)]
async fn raised_priority_keeps_one_entry_and_its_age() {
    let queue = queue();
    queue.add("slow", Priority::Low);
    advance(9 * SECOND).await;
    queue.add("slow", Priority::High);
    queue.add("slow", Priority::Low);
    assert_eq!((queue.depth(), queue.oldest_age().as_secs()), (1, 9));
    now(&queue).await.unwrap().done();
    assert!(now(&queue).await.is_none());
}

/// kubernetes.md 1.8 "One at a time".
#[tokio::test(start_paused = true)]
async fn concurrent_workers_never_share_a_key() {
    let queue: Queue<u8> = Queue::new("test", Backoff::default(), &Metrics::default());
    let running = Arc::new(Mutex::new(HashMap::<u8, usize>::new()));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (queue, running) = (queue.clone(), Arc::clone(&running));
        workers.spawn(async move {
            let mut did = 0;
            while let Some(work) = queue.next().await {
                let key = *work.key();
                assert_eq!(
                    running.lock().unwrap().insert(key, 1),
                    None,
                    "key {key} is processed twice at a time"
                );
                tokio::time::sleep(Duration::from_millis(u64::from(key) * 7 % 5)).await;
                running.lock().unwrap().remove(&key);
                did += 1;
                work.done();
            }
            did
        });
    }
    for round in 0..200_u32 {
        queue.add((round % 7) as u8, Priority::Normal);
        tokio::time::sleep(Duration::from_millis(u64::from(round % 3))).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(queue.depth(), 0);
    queue.close();
    let done: usize = workers.join_all().await.into_iter().sum();
    assert!((7..=200).contains(&done), "{done}");
}

#[tokio::test(start_paused = true)]
async fn metrics_report_depth_and_age() {
    let metrics = Metrics::default();
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let queue = Queue::new("claims", Backoff::default(), &metrics);
    queue.add("a", Priority::Normal);
    queue.add("b", Priority::Normal);
    advance(3 * SECOND).await;
    let work = queue.next().await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "workqueue_depth{name=\"claims\"} 1.0",
        "wharf_queue_oldest_seconds{name=\"claims\"} 3.0",
        "wharf_queue_running{name=\"claims\"} 1.0",
        "workqueue_adds_total{name=\"claims\"} 2",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    work.done();
}
