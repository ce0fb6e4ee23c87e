//! Feature gates: what upstream's programs let one turn on and off, and what of it one can still turn here.

use super::{FlagError, Given};
use crate::sidecar::goflags::parse_bool;

/// A gate of an upstream program.
pub(super) struct Gate {
    pub(super) name: &'static str,
    pub(super) is: Is,
}

/// What a gate is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    /// On unless it is turned off.
    Free,
    /// On, whatever is said.
    On,
    /// Off, whatever is said: it is not built.
    NotBuilt,
}

/// Groups of gates, which every program knows.
const GROUPS: [&str; 2] = ["AllAlpha", "AllBeta"];

/// The gates that are off; what cannot be as it is asked for becomes a warning, an unknown gate is refused.
pub(super) fn off(gates: &[Gate], given: &mut Given) -> Result<Vec<&'static str>, FlagError> {
    let (mut off, mut warnings) = (Vec::new(), Vec::new());
    for item in given.items("feature-gates") {
        let malformed = || FlagError(format!("flag -feature-gates: {item:?} is not a gate: write Name=true"));
        let (name, value) = item.split_once('=').ok_or_else(malformed)?;
        let (name, on) = (name.trim(), parse_bool(value.trim()).ok_or_else(malformed)?);
        if GROUPS.contains(&name) {
            warnings.push(format!("feature gate {name} is ignored: name the gates one by one"));
            continue;
        }
        let known = || gates.iter().map(|gate| gate.name).collect::<Vec<_>>().join(", ");
        let unknown =
            || FlagError(format!("flag -feature-gates: there is no gate {name:?}; there are {}", known()));
        let gate = gates.iter().find(|gate| gate.name == name).ok_or_else(unknown)?;
        off.retain(|name| *name != gate.name);
        match (gate.is, on) {
            (Is::Free, false) => off.push(gate.name),
            (Is::On, false) => warnings.push(format!("feature gate {name} is always on: false is ignored")),
            (Is::NotBuilt, true) => {
                warnings.push(format!("feature gate {name} is not built: true is ignored"))
            }
            (Is::Free | Is::On, true) | (Is::NotBuilt, false) => {}
        }
    }
    given.warnings.extend(warnings);
    Ok(off)
}
