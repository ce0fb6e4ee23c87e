//! Random choices that a seed reproduces.

use std::collections::BTreeMap;

/// A xorshift generator: the same seed gives the same numbers. Good enough for test choices, and needs no
/// dependency.
pub struct SeededRng(u64);

impl SeededRng {
    /// Takes the seed from an environment variable, or a random one. Prints the seed so that a run can be repeated.
    pub fn from_env(variable: &str) -> Self {
        let given = std::env::var(variable).ok().map(|text| text.parse().expect("the seed is not a number"));
        let seed = given.unwrap_or_else(|| getrandom::u64().expect("failed to get random bytes"));
        println!("{variable}={seed}");
        Self::new(seed)
    }

    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        // The state zero would stay zero.
        Self(seed | 1)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap_or(0)
    }

    /// A random entry of a map.
    pub fn pick<K: Clone, V: Clone>(&mut self, map: &BTreeMap<K, V>) -> Option<(K, V)> {
        let at = self.below(map.len());
        map.iter().nth(at).map(|(key, value)| (key.clone(), value.clone()))
    }
}
