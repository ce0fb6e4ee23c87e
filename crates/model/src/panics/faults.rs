//! Panics on purpose, for tests of a whole program.
//!
//! `WHARF_FAULT=panic:COMPONENT:KEY,...` makes the first unit of work of that component whose key contains that text
//! panic, once per entry. Debug builds and the feature `faults` have this; the released binary does not.

use std::fmt::Display;

/// Panics if a fault is planned for this unit of work.
#[cfg(not(any(debug_assertions, feature = "faults")))]
pub(super) fn inject(_component: &str, _key: &impl Display) {}

/// Panics if a fault is planned for this unit of work.
#[cfg(any(debug_assertions, feature = "faults"))]
pub(super) fn inject(component: &str, key: &impl Display) {
    use std::sync::{LazyLock, Mutex, PoisonError};

    static PLANNED: LazyLock<Mutex<Vec<Fault>>> =
        LazyLock::new(|| Mutex::new(parse(&std::env::var("WHARF_FAULT").unwrap_or_default())));
    let mut planned = PLANNED.lock().unwrap_or_else(PoisonError::into_inner);
    if planned.is_empty() {
        return;
    }
    let key = key.to_string();
    if take(&mut planned, component, &key) {
        drop(planned);
        panic!("injected by WHARF_FAULT");
    }
}

/// A planned panic.
#[cfg(any(debug_assertions, feature = "faults"))]
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    component: String,
    key: String,
}

/// Parses the environment variable. An entry of another form is ignored.
#[cfg(any(debug_assertions, feature = "faults"))]
fn parse(text: &str) -> Vec<Fault> {
    let fault = |entry: &str| {
        let (component, key) = entry.strip_prefix("panic:")?.split_once(':')?;
        Some(Fault { component: component.to_owned(), key: key.to_owned() })
    };
    text.split(',').filter_map(fault).collect()
}

/// Removes the fault that this unit of work triggers, if there is one.
#[cfg(any(debug_assertions, feature = "faults"))]
fn take(planned: &mut Vec<Fault>, component: &str, key: &str) -> bool {
    let at = planned.iter().position(|fault| fault.component == component && key.contains(&fault.key));
    at.map(|at| planned.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_taken_once_by_the_first_matching_unit() {
        let mut planned = parse("panic:apiserver:GET /api/v1,panic:pods:,pods:x,panic:pods");
        assert_eq!(planned.len(), 2);
        for (component, key, taken) in [
            ("apiserver", "POST /api/v1", false),
            ("pods", "GET /api/v1", true),
            ("pods", "any", false),
            ("apiserver", "GET /api/v1/pods", true),
            ("apiserver", "GET /api/v1/pods", false),
        ] {
            assert_eq!(take(&mut planned, component, key), taken, "{component} {key}");
        }
    }
}
