//! Proves that the CRDs of group snapshots were removed, and with them all groups: a snapshot that belonged to a group
//! can be deleted then.
//!
//! A group that cannot be read proves nothing: a starting server may not serve its CRDs yet, and a CRD may be served in
//! other versions only. So the server's list of API groups counts, and only if it lacks the whole group repeatedly.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wharf_cluster::{ApiError, Cluster, monotonic};
use wharf_model::{Kind, Monotonic, VolumeGroupSnapshot};

/// The first and the last list without the API group are at least this far apart.
const MIN_ABSENCE: Duration = Duration::from_secs(60);
/// Lists further apart than this do not count together: the API group may have been served between them.
const MAX_GAP: Duration = Duration::from_secs(600);

/// The lists without the API group of group snapshots since the last sign that the server serves it.
#[derive(Debug, Default)]
pub(in super::super) struct RemovedGroups {
    absence: Mutex<Option<Absence>>,
}

#[derive(Debug, Clone, Copy)]
struct Absence {
    first: Monotonic,
    last: Monotonic,
}

impl RemovedGroups {
    /// Queries the server.
    pub(in super::super) async fn are_removed(&self, cluster: &Cluster) -> Result<bool, ApiError> {
        let is_served = cluster.serves_api_group(VolumeGroupSnapshot::API.group).await?;
        Ok(self.observe(is_served, monotonic()))
    }

    /// Records a list of API groups. Whether it proves that the CRDs were removed.
    pub(in super::super) fn observe(&self, is_served: bool, now: Monotonic) -> bool {
        let mut absence = self.absence.lock().unwrap_or_else(PoisonError::into_inner);
        if is_served {
            *absence = None;
            return false;
        }
        let first = match *absence {
            Some(Absence { first, last }) if now.since(last) <= MAX_GAP => first,
            _ => now,
        };
        *absence = Some(Absence { first, last: now });
        now.since(first) >= MIN_ABSENCE
    }

    /// The read of a group had another result than that the kind is not served: earlier absences prove nothing.
    pub(in super::super) fn forget_absence(&self) {
        *self.absence.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_removed_once_their_api_group_is_missing_for_a_minute() {
        let removed = RemovedGroups::default();
        for (second, is_served, expected) in [
            (0, false, false),
            (59, false, false),
            (60, true, false),
            (61, false, false),
            (120, false, false),
            (121, false, true),
            (122, true, false),
            (123, false, false),
        ] {
            assert_eq!(removed.observe(is_served, Monotonic(second * 1000)), expected, "second {second}");
        }
    }

    /// The API group may be missing for a moment during each restart of the server.
    #[test]
    fn absences_far_apart_do_not_count_together() {
        let removed = RemovedGroups::default();
        for (second, expected) in [
            (0, false),
            (601, false),
            (86_400, false),
            (86_459, false),
            (87_059, true),
            (87_660, false),
            (87_720, true),
        ] {
            assert_eq!(removed.observe(false, Monotonic(second * 1000)), expected, "second {second}");
        }
        removed.forget_absence();
        assert!(!removed.observe(false, Monotonic(87_721_000)));
    }
}
