//! Feature gates of the upstream programs, and their support in Wharf.

use super::{FlagError, ParsedFlags};
use crate::goflags::parse_bool;

/// A gate of an upstream program.
pub(super) struct Gate {
    pub(super) name: &'static str,
    pub(super) support: GateSupport,
}

/// How Wharf supports a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GateSupport {
    /// On by default; can be turned off.
    Switchable,
    /// Always on; `false` is ignored.
    AlwaysOn,
    /// Always off; `true` is ignored.
    NotImplemented,
}

/// Groups of gates, which every program accepts.
const GROUPS: [&str; 2] = ["AllAlpha", "AllBeta"];

/// The gates that are turned off. A value that is not supported becomes a warning; an unknown gate is an error.
pub(super) fn disabled_gates(
    gates: &[Gate],
    parsed: &mut ParsedFlags,
) -> Result<Vec<&'static str>, FlagError> {
    let (mut disabled, mut warnings) = (Vec::new(), Vec::new());
    for item in parsed.items("feature-gates") {
        let malformed = || FlagError(format!("flag -feature-gates: {item:?} is not valid: write Name=true"));
        let (name, value) = item.split_once('=').ok_or_else(malformed)?;
        let (name, on) = (name.trim(), parse_bool(value.trim()).ok_or_else(malformed)?);
        if GROUPS.contains(&name) {
            warnings.push(format!("feature gate {name} is ignored: name the gates one by one"));
            continue;
        }
        let known = || gates.iter().map(|gate| gate.name).collect::<Vec<_>>().join(", ");
        let unknown =
            || FlagError(format!("flag -feature-gates: unknown gate {name:?}; known gates: {}", known()));
        let gate = gates.iter().find(|gate| gate.name == name).ok_or_else(unknown)?;
        disabled.retain(|name| *name != gate.name);
        match (gate.support, on) {
            (GateSupport::Switchable, false) => disabled.push(gate.name),
            (GateSupport::AlwaysOn, false) => {
                warnings.push(format!("feature gate {name} is always on: false is ignored"))
            }
            (GateSupport::NotImplemented, true) => {
                warnings.push(format!("feature gate {name} is not implemented: true is ignored"))
            }
            (GateSupport::Switchable | GateSupport::AlwaysOn, true)
            | (GateSupport::NotImplemented, false) => {}
        }
    }
    parsed.warnings.extend(warnings);
    Ok(disabled)
}
