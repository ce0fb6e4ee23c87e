//! Available volumes in the order in which claims choose them, and the reservations of claims that are being bound.
//!
//! Guarantee: no two claims reserve the same volume at the same time, so that a thousand claims that arrive together do
//! not compete for one volume after the other. An offer is only a hint: the binder checks the volume in its store, and
//! the API server rejects a stale write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use wharf_model::matching::{MatchFor, available_class, class_or_empty, find_matching_volume};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Quantity};

/// Number of access modes, size, name: the order in which volumes are chosen.
type Rank = (usize, Quantity, String);
/// There are four access modes; unknown ones count as one more.
const MODES: usize = 5;

/// All offers and reservations, shared by all workers.
#[derive(Clone, Default)]
pub(super) struct Offers(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    ranks: BTreeMap<String, BTreeSet<Rank>>,
    positions: BTreeMap<String, (String, Rank)>,
    /// Reserved volumes, and the claims they are reserved for.
    reserved: BTreeMap<String, Key>,
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Updates the offer of a volume; `None` if the volume was deleted.
    pub(super) fn update(&self, name: &str, volume: Option<&PersistentVolume>) {
        self.lock().update(name, volume);
    }

    /// An empty reservation for a claim. What it reserves stays reserved until it is dropped.
    pub(super) fn reserve_for(&self, claim: &Key) -> Reservation {
        Reservation { offers: self.clone(), claim: claim.clone(), name: None, released: Vec::new() }
    }

    /// Which of these claims of one class, in this order, can get a volume: each is matched with an offer that no
    /// earlier one was matched with. A claim that has a reservation is skipped: waking it would serve no claim.
    pub(super) fn claims_to_wake<'a>(
        &self,
        of_class: &str,
        claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>,
        get_volume: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
    ) -> Vec<Key> {
        let (mut available, holders) = {
            let inner = self.lock();
            let mut ranks = inner.ranks.get(of_class).cloned().unwrap_or_default();
            ranks.retain(|(.., name)| !inner.reserved.contains_key(name));
            (ranks, inner.reserved.values().cloned().collect::<BTreeSet<_>>())
        };
        let mut served = Vec::new();
        for claim in claims {
            if available.is_empty() {
                break;
            }
            let key = claim.metadata.key();
            if holders.contains(&key) {
                continue;
            }
            if let Some((rank, _)) = first_fit(&available, claim, |_| true, &get_volume) {
                available.remove(&rank);
                served.push(key);
            }
        }
        served
    }
}

impl Inner {
    fn update(&mut self, name: &str, volume: Option<&PersistentVolume>) {
        let position = volume.and_then(|volume| {
            let modes = volume.spec.access_modes.iter().collect::<BTreeSet<_>>().len().min(MODES);
            let size = volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
            Some((available_class(volume)?.to_owned(), (modes, size, name.to_owned())))
        });
        if let Some((class, rank)) = self.positions.remove(name)
            && let Some(ranks) = self.ranks.get_mut(&class)
        {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.ranks.remove(&class);
            }
        }
        if let Some((class, rank)) = position {
            self.ranks.entry(class.clone()).or_default().insert(rank.clone());
            self.positions.insert(name.to_owned(), (class, rank));
        }
    }
}

/// The first volume that matches. Volumes that are too small are not visited.
fn first_fit(
    ranks: &BTreeSet<Rank>,
    claim: &PersistentVolumeClaim,
    free: impl Fn(&str) -> bool,
    get_volume: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
) -> Option<(Rank, Arc<PersistentVolume>)> {
    let requested = claim.requested_storage().unwrap_or(Quantity::ZERO);
    let from = |modes: usize, size: Quantity| (modes, size, String::new());
    (0..=MODES)
        .flat_map(|modes| ranks.range(from(modes, requested)..from(modes + 1, Quantity::ZERO)))
        .filter(|(.., name)| free(name))
        .filter_map(|rank| Some((rank, get_volume(&rank.2)?)))
        .find(|(_, volume)| fits(claim, volume))
        .map(|(rank, volume)| (rank.clone(), volume))
}

fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    find_matching_volume(claim, [volume], MatchFor::Binder { delayed: false }).is_some()
}

/// A claim's reservation: at most one volume at a time.
pub(super) struct Reservation {
    offers: Offers,
    claim: Key,
    name: Option<String>,
    released: Vec<String>,
}

impl Reservation {
    /// The reserved volume, if it is still available and matches, so that no other claim was denied the volume unnecessarily.
    /// Otherwise reserves the best offer that is not reserved for another claim. `get_volume` reads volumes from the
    /// store.
    pub(super) fn take(
        &mut self,
        claim: &PersistentVolumeClaim,
        get_volume: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
    ) -> Option<Arc<PersistentVolume>> {
        let mut inner = self.offers.lock();
        if let Some(name) = self.name.take() {
            let still =
                get_volume(&name).filter(|volume| inner.positions.contains_key(&name) && fits(claim, volume));
            if let Some(volume) = still {
                self.name = Some(name);
                return Some(volume);
            }
            inner.reserved.remove(&name);
            self.released.push(name);
        }
        let ranks = inner.ranks.get(class_or_empty(claim))?;
        let (_, volume) = first_fit(ranks, claim, |name| !inner.reserved.contains_key(name), &get_volume)?;
        let name = volume.metadata.name.clone();
        inner.reserved.insert(name.clone(), self.claim.clone());
        self.name = Some(name);
        Some(volume)
    }

    /// All volumes that this reservation ever held: other claims were denied these.
    pub(super) fn all_reserved(&self) -> impl Iterator<Item = &str> {
        self.released.iter().chain(&self.name).map(String::as_str)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.offers.lock().reserved.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, size: &str, modes: &[&str], changes: serde_json::Value) -> Arc<PersistentVolume> {
        let mut volume = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": modes, "storageClassName": "c", "capacity": {"storage": size}},
            "status": {"phase": "Available"},
        });
        for (field, value) in changes.as_object().unwrap() {
            volume["spec"][field] = value.clone();
        }
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    fn claim(name: &str, size: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "c",
                "resources": {"requests": {"storage": size}},
            },
        }))
        .unwrap()
    }

    const RWO: &[&str] = &["ReadWriteOnce"];
    const TWO: &[&str] = &["ReadWriteOnce", "ReadWriteMany"];

    fn offers(volumes: &[Arc<PersistentVolume>]) -> Offers {
        let offers = Offers::default();
        for volume in volumes {
            offers.update(&volume.metadata.name, Some(volume));
        }
        offers
    }

    fn find(volumes: &[Arc<PersistentVolume>]) -> impl Fn(&str) -> Option<Arc<PersistentVolume>> + '_ {
        |name| volumes.iter().find(|volume| volume.metadata.name == name).cloned()
    }

    /// kubernetes.md 1.1 "Best match": the offer is the volume that matching would choose among all.
    #[test]
    fn offer_is_the_best_match() {
        let volumes = [
            volume("a", "9Gi", RWO, json!({})),
            volume("b", "2Gi", TWO, json!({})),
            volume("c", "3Gi", RWO, json!({})),
            volume("d", "1Gi", RWO, json!({})),
            volume("e", "2Gi", RWO, json!({"volumeMode": "Block"})),
            volume("f", "2Gi", RWO, json!({"storageClassName": "other"})),
            volume("g", "2Gi", RWO, json!({"claimRef": {"namespace": "ns", "name": "x"}})),
        ];
        let offers = offers(&volumes);
        for (size, expected) in [("1Gi", Some("d")), ("2Gi", Some("c")), ("4Gi", Some("a")), ("10Gi", None)] {
            let claim = claim("x1", size);
            let offered = offers.reserve_for(&claim.metadata.key()).take(&claim, find(&volumes));
            let offered = offered.map(|volume| volume.metadata.name.clone());
            assert_eq!(offered.as_deref(), expected, "{size}");
            let all = volumes.iter().map(|volume| &**volume);
            let chosen = find_matching_volume(&claim, all, MatchFor::Binder { delayed: false });
            assert_eq!(offered, chosen.map(|volume| volume.metadata.name.clone()), "{size}");
        }
    }

    /// kubernetes#95497: claims that arrive together do not compete for the same volume.
    #[test]
    fn reserved_volume_is_not_offered() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let claims = ["1", "2", "3"].map(|name| claim(name, "1Gi"));
        let mut reservations = claims.each_ref().map(|claim| offers.reserve_for(&claim.metadata.key()));
        let mut take = |reservation: usize| {
            let volume = reservations[reservation].take(&claims[reservation], find(&volumes));
            assert_eq!(
                volume.as_ref().map(|volume| volume.metadata.name.as_str()),
                reservations[reservation].all_reserved().last()
            );
            volume.map(|volume| volume.metadata.name.clone())
        };
        assert_eq!(take(0).as_deref(), Some("a"));
        // A second call returns the same volume.
        assert_eq!(take(0).as_deref(), Some("a"));
        assert_eq!(take(1).as_deref(), Some("b"));
        assert_eq!(take(2), None);
        let [first, second, mut third] = reservations;
        drop(first);
        assert_eq!(third.take(&claims[2], find(&volumes)).unwrap().metadata.name, "a");
        drop((second, third));
        assert!(offers.lock().reserved.is_empty());
    }

    /// Offers are hints: the store decides.
    #[test]
    fn stale_offers_are_skipped() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let bound = [
            volume("a", "1Gi", RWO, json!({"claimRef": {"namespace": "ns", "name": "x"}})),
            volume("b", "2Gi", RWO, json!({})),
        ];
        let claim = claim("1", "1Gi");
        let mut reservation = offers.reserve_for(&claim.metadata.key());
        assert_eq!(reservation.take(&claim, find(&bound)).unwrap().metadata.name, "b");
        offers.update("b", None);
        assert!(reservation.take(&claim, find(&bound)).is_none());
        offers.update("a", Some(&bound[0]));
        assert!(reservation.take(&claim, find(&volumes)).is_none());
        assert!(offers.lock().ranks.is_empty() && offers.lock().positions.is_empty());
    }

    /// A better volume that appears later does not replace the reserved one: waiting claims were denied the reserved
    /// one and would not be woken when it is free again. A volume that no longer matches is released, and recorded.
    #[test]
    fn reservation_is_kept_while_it_matches() {
        let mut volumes = vec![volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let small = claim("1", "1Gi");
        let mut reservation = offers.reserve_for(&small.metadata.key());
        let mut name = |claim: &_, volumes: &[_]| {
            reservation.take(claim, find(volumes)).map(|volume| volume.metadata.name.clone())
        };
        assert_eq!(name(&small, &volumes).as_deref(), Some("b"));
        volumes.push(volume("a", "1Gi", RWO, json!({})));
        offers.update("a", Some(&volumes[1]));
        assert_eq!(name(&small, &volumes).as_deref(), Some("b"));
        volumes.push(volume("c", "3Gi", RWO, json!({})));
        offers.update("c", Some(&volumes[2]));
        assert_eq!(name(&claim("1", "3Gi"), &volumes).as_deref(), Some("c"));
        assert_eq!(reservation.all_reserved().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(offers.lock().reserved.keys().collect::<Vec<_>>(), ["c"]);
    }

    /// kubernetes#95497: a new volume wakes one claim, not all that wait.
    #[test]
    fn each_offer_wakes_one_claim() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "5Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let claims = [claim("1", "9Gi"), claim("2", "1Gi"), claim("3", "2Gi"), claim("4", "1Gi")];
        let names = |keys: Vec<Key>| keys.into_iter().map(|key| key.name).collect::<Vec<_>>();
        assert_eq!(names(offers.claims_to_wake("c", &claims, find(&volumes))), ["2", "3"]);
        let mut reservation = offers.reserve_for(&claims[1].metadata.key());
        assert!(reservation.take(&claims[1], find(&volumes)).is_some());
        // A claim with a reservation is skipped: a later claim gets the remaining volume.
        assert_eq!(names(offers.claims_to_wake("c", [&claims[1], &claims[3]], find(&volumes))), ["4"]);
        assert_eq!(names(offers.claims_to_wake("c", &claims[2..], find(&volumes))), ["3"]);
    }
}
