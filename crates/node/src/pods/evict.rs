//! Evicts pods whose emptyDir volumes exceed their size limit, as kubelet does.
//!
//! Each pod is measured by a thread of its own, of which only a few run at the same time. One that takes long, because the
//! pod has many files or the disk does not answer, gives its turn to the next pod and goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use wharf_cluster::{EventType, Priority};
use wharf_model::Pod;
use wharf_model::panics::catch;

use super::Pods;
use super::pod_state::PodVolumes;
use crate::volumes::plain::usage;

/// How often usage is measured: kubelet's housekeeping interval of evictions.
const INTERVAL: Duration = Duration::from_secs(10);

/// How many pods are measured at the same time.
const TURNS: usize = 2;

/// How long the measurement of a pod keeps its turn.
const TURN: Duration = Duration::from_secs(10);

impl Pods {
    /// Measures all emptyDir volumes with a limit periodically, for as long as it is polled.
    pub(super) async fn enforce_limits(self: Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let turns = Arc::new(Semaphore::new(TURNS));
        let (mut rounds, mut busy) = (JoinSet::new(), BTreeMap::<String, AbortHandle>::new());
        loop {
            ticks.tick().await;
            while rounds.try_join_next().is_some() {}
            busy.retain(|_, round| !round.is_finished());
            for uid in self.pod_states.uids() {
                let Some(pod) = self.limited_pod(&uid) else { continue };
                busy.entry(uid.clone()).or_insert_with(|| {
                    let (pods, turns) = (Arc::clone(&self), Arc::clone(&turns));
                    rounds.spawn(async move {
                        // After a panic the next tick measures again.
                        let work = pods.enforce_limits_of(&uid, &pod, &turns);
                        let _ = catch("empty-dir-limits", uid.clone(), work).await;
                    })
                });
            }
        }
    }

    /// The pod, if one of its volumes is to be measured.
    fn limited_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        let pod = self.pod_states.with(uid, |pod_state| {
            let measured = matches!(pod_state.volumes, PodVolumes::Mounted(_)) && pod_state.evicted.is_none();
            measured.then(|| Arc::clone(&pod_state.pod))
        });
        pod.flatten().filter(|pod| !pod.has_ended() && usage::limits(pod).next().is_some())
    }

    async fn enforce_limits_of(&self, uid: &str, pod: &Arc<Pod>, turns: &Semaphore) {
        let (root, measured) = (self.agent.root.clone(), Arc::clone(pod));
        let exceeded = in_turn(
            turns,
            move || usage::exceeded_limit(&root, &measured),
            || {
                tracing::warn!(pod = %pod.metadata.key(), "measurement of emptyDir volumes takes long");
            },
        );
        let Some(Some(message)) = exceeded.await else { return };
        // The pod may have gone meanwhile.
        let evicted = self.pod_states.with(uid, |pod_state| pod_state.evicted = Some(message.clone()));
        if evicted.is_none() {
            return;
        }
        tracing::warn!(pod = %pod.metadata.key(), reason = message, "evicting pod");
        self.agent.events.record_for(&**pod, EventType::Warning, "Evicted", message);
        self.queue.add(uid.to_owned(), Priority::High);
    }
}

/// Waits for a turn, and for the result of `work`. If it takes long, `late` is called and the next one gets the turn.
/// `None` if there is no thread for it, or after a panic.
///
/// A plain thread: threads of the async runtime would delay the end of the process until the disk answers.
async fn in_turn<T: Send + 'static>(
    turns: &Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(),
) -> Option<T> {
    let turn = turns.acquire().await.ok()?;
    let (sender, mut result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("empty-dir-usage".to_owned());
    thread.spawn(move || drop(sender.send(work()))).ok()?;
    match timeout(TURN, &mut result).await {
        Ok(result) => result.ok(),
        Err(_) => {
            drop(turn);
            late();
            result.await.ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blocked_measurement_gives_its_turn_to_the_next() {
        let turns = Semaphore::new(1);
        let (release, blocked) = mpsc::channel::<()>();
        let mut late = false;
        let first = in_turn(&turns, move || blocked.recv().is_ok(), || late = true);
        let second = async {
            let result = in_turn(&turns, || 2, || ()).await;
            release.send(()).unwrap();
            result
        };
        assert_eq!(tokio::join!(first, second), (Some(true), Some(2)));
        assert!(late);
        assert_eq!(in_turn(&turns, || panic!("on purpose"), || ()).await, None::<()>);
        assert_eq!(in_turn(&turns, || 3, || ()).await, Some(3));
    }
}
