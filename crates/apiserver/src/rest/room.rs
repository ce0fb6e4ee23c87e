//! Room for lists: what those that are being answered have in memory together is bounded, by bytes. A list is weighed
//! before it is made, waits for its share while it holds nothing, and its bytes hold the share until the last of them is
//! sent. One that is larger than all the room has all of it, and is alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answer::{List, Look};
use super::negotiate::Shape;
use crate::status::Refusal;

/// Shares are given out in this measure.
const MEASURE: usize = 1 << 10;
/// For room.
const WAIT: Duration = Duration::from_secs(30);
/// What frames each object, and the whole.
const FRAME: usize = 64;
/// Read JSON has about so many times the size of its text.
const READ: usize = 8;

/// All the room. Clones are of the same.
#[derive(Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    all: u32,
}

/// A part of it, until it is dropped.
pub(crate) struct Share(OwnedSemaphorePermit);

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let all = measures(bytes);
        Self { free: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// If there is room at once.
    pub(super) fn now(&self, bytes: usize) -> Option<Share> {
        self.free.clone().try_acquire_many_owned(measures(bytes).min(self.all)).ok().map(Share)
    }

    /// When there is room; who waits longer is served first.
    pub(super) async fn wait(&self, bytes: usize) -> Result<Share, Refusal> {
        let share = self.free.clone().acquire_many_owned(measures(bytes).min(self.all));
        let share = timeout(WAIT, share).await.ok().and_then(Result::ok).map(Share);
        share.ok_or_else(|| {
            Refusal::too_many("there is no room for another list: try again later, or with a limit")
        })
    }
}

impl Share {
    /// Bytes that hold as much of it as they need. The rest was for making them.
    pub(super) fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        let surplus = self.0.num_permits().saturating_sub(measures(bytes.len()) as usize);
        drop(self.0.split(surplus));
        Bytes::from_owner(Held { bytes, _share: self })
    }
}

struct Held {
    bytes: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn measures(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(MEASURE).max(1)).unwrap_or(u32::MAX)
}

/// What it takes to make the answer. The objects themselves are the store's.
pub(super) fn weight(list: &List, look: Look) -> usize {
    let text = list.objects.iter().fold(FRAME, |sum, object| sum + object.len() + FRAME);
    match look.shape {
        Shape::Object | Shape::Discovery if !look.pretty => text,
        _ => text.saturating_mul(READ),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use wharf_model::Time;

    use super::*;
    use crate::table::Include;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_waits_and_is_refused_after_a_while() {
        let room = Room::new(10 * MEASURE);
        let held = room.now(3 * MEASURE).unwrap().hold(vec![1; 2 * MEASURE]);
        let part = held.slice(..5);
        assert!(room.now(8 * MEASURE).is_some(), "what was for making it is given back");
        assert!(room.now(8 * MEASURE + 1).is_none());
        let began = Instant::now();
        let refusal = room.wait(9 * MEASURE).await.map(|_| ()).unwrap_err();
        assert_eq!((refusal.code, refusal.details.retry_after_seconds), (429, Some(1)));
        assert_eq!(began.elapsed(), WAIT);
        drop(held);
        assert!(room.now(9 * MEASURE).is_none(), "as long as any of the bytes is there");
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.wait(usize::MAX).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(part);
        assert!(waiting.await.unwrap(), "one that is too large for all has all");
    }

    #[test]
    fn what_has_to_be_read_weighs_more() {
        let objects = vec![Bytes::from_static(&[b' '; 1000]); 2];
        let list = List { objects, revision: 1, token: String::new(), remaining: None, room: None };
        for (shape, pretty, expected) in [
            (Shape::Object, false, 2000 + 3 * FRAME),
            (Shape::Object, true, READ * (2000 + 3 * FRAME)),
            (Shape::Partial, false, READ * (2000 + 3 * FRAME)),
            (Shape::Table(Include::None), false, READ * (2000 + 3 * FRAME)),
        ] {
            let look = Look { shape, pretty, now: Time(0) };
            assert_eq!(weight(&list, look), expected, "{shape:?} {pretty}");
        }
    }
}
