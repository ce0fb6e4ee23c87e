//! Volumes that are to be had, in the order in which claims would choose them, and who is about to take which.
//!
//! Promise: no two claims are given the same volume at the same time, so that a thousand claims that come at once do
//! not fight over one volume after the other. What is offered is only a hint: whoever takes an offer looks at the
//! volume itself, and the server has the last word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use wharf_model::matching::{Seeker, best, class, offered_in};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Quantity};

/// How many access modes, how large, and its name: the order of choice.
type Rank = (usize, Quantity, String);
/// There are four access modes; what we do not know counts as one more.
const MODES: usize = 5;

/// Shared by all workers.
#[derive(Clone, Default)]
pub(super) struct Offers(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    ranks: BTreeMap<String, BTreeSet<Rank>>,
    places: BTreeMap<String, (String, Rank)>,
    /// Volumes that are held, and the claims that they are held for.
    taken: BTreeMap<String, Key>,
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A volume is as it is now: `None` if it is gone.
    pub(super) fn update(&self, name: &str, volume: Option<&PersistentVolume>) {
        self.lock().update(name, volume);
    }

    /// A hand for a claim: what it holds is nobody else's until it is dropped.
    pub(super) fn hold(&self, claim: &Key) -> Held {
        Held { offers: self.clone(), claim: claim.clone(), name: None, let_go: Vec::new() }
    }

    /// Who of these claims of one class, in their order, may get something: each is given an offer that no one before
    /// was given. Who holds one already gets no other: it would be woken in vain, and nobody in its place.
    pub(super) fn spread<'a>(
        &self,
        of_class: &str,
        claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>,
        is: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
    ) -> Vec<Key> {
        let (mut left, holders) = {
            let inside = self.lock();
            let mut ranks = inside.ranks.get(of_class).cloned().unwrap_or_default();
            ranks.retain(|(.., name)| !inside.taken.contains_key(name));
            (ranks, inside.taken.values().cloned().collect::<BTreeSet<_>>())
        };
        let mut lucky = Vec::new();
        for claim in claims {
            if left.is_empty() {
                break;
            }
            let key = claim.metadata.key();
            if holders.contains(&key) {
                continue;
            }
            if let Some((rank, _)) = first(&left, claim, |_| true, &is) {
                left.remove(&rank);
                lucky.push(key);
            }
        }
        lucky
    }
}

impl Inside {
    fn update(&mut self, name: &str, volume: Option<&PersistentVolume>) {
        let place = volume.and_then(|volume| {
            let modes = volume.spec.access_modes.iter().collect::<BTreeSet<_>>().len().min(MODES);
            let size = volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
            Some((offered_in(volume)?.to_owned(), (modes, size, name.to_owned())))
        });
        if let Some((class, rank)) = self.places.remove(name)
            && let Some(ranks) = self.ranks.get_mut(&class)
        {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.ranks.remove(&class);
            }
        }
        if let Some((class, rank)) = place {
            self.ranks.entry(class.clone()).or_default().insert(rank.clone());
            self.places.insert(name.to_owned(), (class, rank));
        }
    }
}

/// The first that fits, without a look at those that are too small.
fn first(
    ranks: &BTreeSet<Rank>,
    claim: &PersistentVolumeClaim,
    free: impl Fn(&str) -> bool,
    is: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
) -> Option<(Rank, Arc<PersistentVolume>)> {
    let asked = claim.requested().unwrap_or(Quantity::ZERO);
    let from = |modes: usize, size: Quantity| (modes, size, String::new());
    (0..=MODES)
        .flat_map(|modes| ranks.range(from(modes, asked)..from(modes + 1, Quantity::ZERO)))
        .filter(|(.., name)| free(name))
        .filter_map(|rank| Some((rank, is(&rank.2)?)))
        .find(|(_, volume)| fits(claim, volume))
        .map(|(rank, volume)| (rank.clone(), volume))
}

fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    best(claim, [volume], Seeker::Binder { delayed: false }).is_some()
}

/// A volume that is about to be a claim's; at most one at a time.
pub(super) struct Held {
    offers: Offers,
    claim: Key,
    name: Option<String>,
    let_go: Vec<String>,
}

impl Held {
    /// What is held, if it is still to be had and fits, so that nobody is kept from a volume in vain. Otherwise the best
    /// offer that is not about to be another claim's is held from now on. `is` gives volumes as they are.
    pub(super) fn take(
        &mut self,
        claim: &PersistentVolumeClaim,
        is: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
    ) -> Option<Arc<PersistentVolume>> {
        let mut inside = self.offers.lock();
        if let Some(name) = self.name.take() {
            let still = is(&name).filter(|volume| inside.places.contains_key(&name) && fits(claim, volume));
            if let Some(volume) = still {
                self.name = Some(name);
                return Some(volume);
            }
            inside.taken.remove(&name);
            self.let_go.push(name);
        }
        let ranks = inside.ranks.get(class(claim))?;
        let (_, volume) = first(ranks, claim, |name| !inside.taken.contains_key(name), &is)?;
        let name = volume.metadata.name.clone();
        inside.taken.insert(name.clone(), self.claim.clone());
        self.name = Some(name);
        Some(volume)
    }

    /// All that was held at any time: others were kept from these.
    pub(super) fn kept(&self) -> impl Iterator<Item = &str> {
        self.let_go.iter().chain(&self.name).map(String::as_str)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.offers.lock().taken.remove(&name);
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

    /// kubernetes.md 1.1 "Best match": the offer is the one that matching would choose of all.
    #[test]
    fn the_offer_is_the_best_match() {
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
            let offered = offers.hold(&claim.metadata.key()).take(&claim, find(&volumes));
            let offered = offered.map(|volume| volume.metadata.name.clone());
            assert_eq!(offered.as_deref(), expected, "{size}");
            let all = volumes.iter().map(|volume| &**volume);
            let chosen = best(&claim, all, Seeker::Binder { delayed: false });
            assert_eq!(offered, chosen.map(|volume| volume.metadata.name.clone()), "{size}");
        }
    }

    /// kubernetes#95497: claims that come at once do not fight for the same volume.
    #[test]
    fn what_is_taken_is_not_offered() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let claims = ["1", "2", "3"].map(|name| claim(name, "1Gi"));
        let mut hands = claims.each_ref().map(|claim| offers.hold(&claim.metadata.key()));
        let mut take = |hand: usize| {
            let volume = hands[hand].take(&claims[hand], find(&volumes));
            assert_eq!(
                volume.as_ref().map(|volume| volume.metadata.name.as_str()),
                hands[hand].kept().last()
            );
            volume.map(|volume| volume.metadata.name.clone())
        };
        assert_eq!(take(0).as_deref(), Some("a"));
        // To look again does not change one's mind.
        assert_eq!(take(0).as_deref(), Some("a"));
        assert_eq!(take(1).as_deref(), Some("b"));
        assert_eq!(take(2), None);
        let [first, second, mut third] = hands;
        drop(first);
        assert_eq!(third.take(&claims[2], find(&volumes)).unwrap().metadata.name, "a");
        drop((second, third));
        assert!(offers.lock().taken.is_empty());
    }

    /// A hint is only a hint: what the store has is what counts.
    #[test]
    fn stale_hints() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let bound = [
            volume("a", "1Gi", RWO, json!({"claimRef": {"namespace": "ns", "name": "x"}})),
            volume("b", "2Gi", RWO, json!({})),
        ];
        let claim = claim("1", "1Gi");
        let mut hand = offers.hold(&claim.metadata.key());
        assert_eq!(hand.take(&claim, find(&bound)).unwrap().metadata.name, "b");
        offers.update("b", None);
        assert!(hand.take(&claim, find(&bound)).is_none());
        offers.update("a", Some(&bound[0]));
        assert!(hand.take(&claim, find(&volumes)).is_none());
        assert!(offers.lock().ranks.is_empty() && offers.lock().places.is_empty());
    }

    /// A better volume that comes meanwhile does not change one's mind: whoever waits was kept from the first one, and
    /// would not be told that it is free again. What no longer fits is let go, and remembered.
    #[test]
    fn what_is_held_stays_held() {
        let mut volumes = vec![volume("b", "2Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let small = claim("1", "1Gi");
        let mut hand = offers.hold(&small.metadata.key());
        let mut name = |claim: &_, volumes: &[_]| {
            hand.take(claim, find(volumes)).map(|volume| volume.metadata.name.clone())
        };
        assert_eq!(name(&small, &volumes).as_deref(), Some("b"));
        volumes.push(volume("a", "1Gi", RWO, json!({})));
        offers.update("a", Some(&volumes[1]));
        assert_eq!(name(&small, &volumes).as_deref(), Some("b"));
        volumes.push(volume("c", "3Gi", RWO, json!({})));
        offers.update("c", Some(&volumes[2]));
        assert_eq!(name(&claim("1", "3Gi"), &volumes).as_deref(), Some("c"));
        assert_eq!(hand.kept().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(offers.lock().taken.keys().collect::<Vec<_>>(), ["c"]);
    }

    /// kubernetes#95497: a volume that appears wakes one claim, not all that wait.
    #[test]
    fn as_many_are_woken_as_there_are_offers() {
        let volumes = [volume("a", "1Gi", RWO, json!({})), volume("b", "5Gi", RWO, json!({}))];
        let offers = offers(&volumes);
        let claims = [claim("1", "9Gi"), claim("2", "1Gi"), claim("3", "2Gi"), claim("4", "1Gi")];
        let names = |keys: Vec<Key>| keys.into_iter().map(|key| key.name).collect::<Vec<_>>();
        assert_eq!(names(offers.spread("c", &claims, find(&volumes))), ["2", "3"]);
        let mut hand = offers.hold(&claims[1].metadata.key());
        assert!(hand.take(&claims[1], find(&volumes)).is_some());
        // Who holds one is served: the next gets what is left, though it stands further back.
        assert_eq!(names(offers.spread("c", [&claims[1], &claims[3]], find(&volumes))), ["4"]);
        assert_eq!(names(offers.spread("c", &claims[2..], find(&volumes))), ["3"]);
    }
}
