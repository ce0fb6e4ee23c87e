//! Choices that a seed repeats.

use std::collections::BTreeMap;

/// The same numbers for the same seed (xorshift): enough for choosing, and nothing to depend on.
pub struct Dice(u64);

impl Dice {
    /// Seeded by an environment variable, or anew. Says by what, so that a run can be repeated.
    pub fn seeded_by(variable: &str) -> Self {
        let given = std::env::var(variable).ok().map(|text| text.parse().expect("a seed is a number"));
        let seed = given.unwrap_or_else(|| getrandom::u64().expect("random bytes"));
        println!("{variable}={seed}");
        Self::of(seed)
    }

    /// Seeded by this.
    pub fn of(seed: u64) -> Self {
        // Zero would stay zero.
        Self(seed | 1)
    }

    /// A number below so many; 0 of none.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides.max(1) as u64).unwrap_or(0)
    }

    /// One of them.
    pub fn pick<K: Clone, V: Clone>(&mut self, of: &BTreeMap<K, V>) -> Option<(K, V)> {
        let at = self.roll(of.len());
        of.iter().nth(at).map(|(key, value)| (key.clone(), value.clone()))
    }
}
