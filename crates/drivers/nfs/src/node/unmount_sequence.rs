//! The unmount ladder: what to try next. Pure.

use crate::worker::UnmountMode;

/// What is known about a target that must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnmountState {
    /// Something is mounted at the target, by the mount table.
    pub(super) mounted: bool,
    /// The last mode that was tried and did not end the mount.
    pub(super) tried: Option<UnmountMode>,
    /// Whether the mount's server answers; `None` if it was not asked. What is not an NFS mount counts as answering.
    pub(super) answers: Option<bool>,
    /// Whether MNT_FORCE is allowed. It breaks other mounts of the same export.
    pub(super) force: bool,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnmountStep {
    /// Unmount in this mode.
    Unmount(UnmountMode),
    /// Ask the server whether it answers.
    Probe,
    /// The target is free: remove it.
    RemoveTarget,
    /// Give up: the server answers, so somebody uses the mount.
    Fail,
}

/// A mount is detached only if its server does not answer: a lazy unmount hides a mount that is in use.
pub(super) fn next_step(state: &UnmountState) -> UnmountStep {
    use UnmountMode::{Detach, Force, Plain};

    match (state.mounted, state.tried, state.answers) {
        (false, _, _) => UnmountStep::RemoveTarget,
        (true, None, _) => UnmountStep::Unmount(Plain),
        (true, Some(Plain), None) => UnmountStep::Probe,
        (true, Some(Plain), Some(true)) => UnmountStep::Fail,
        (true, Some(Plain), Some(false)) if state.force => UnmountStep::Unmount(Force),
        (true, Some(Plain), Some(false)) | (true, Some(Force), _) => UnmountStep::Unmount(Detach),
        (true, Some(Detach), _) => UnmountStep::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use UnmountMode::{Detach, Force, Plain};

    #[test]
    fn ladder_goes_from_plain_to_lazy_and_forces_only_if_allowed() {
        type Row = (bool, Option<UnmountMode>, Option<bool>, bool, UnmountStep);
        const TABLE: [Row; 14] = [
            (false, None, None, false, UnmountStep::RemoveTarget),
            (false, Some(Plain), Some(false), true, UnmountStep::RemoveTarget),
            (false, Some(Detach), Some(false), false, UnmountStep::RemoveTarget),
            (true, None, None, false, UnmountStep::Unmount(Plain)),
            (true, None, Some(false), true, UnmountStep::Unmount(Plain)),
            (true, Some(Plain), None, false, UnmountStep::Probe),
            (true, Some(Plain), None, true, UnmountStep::Probe),
            (true, Some(Plain), Some(true), false, UnmountStep::Fail),
            (true, Some(Plain), Some(true), true, UnmountStep::Fail),
            (true, Some(Plain), Some(false), false, UnmountStep::Unmount(Detach)),
            (true, Some(Plain), Some(false), true, UnmountStep::Unmount(Force)),
            (true, Some(Force), Some(false), true, UnmountStep::Unmount(Detach)),
            (true, Some(Detach), Some(false), false, UnmountStep::Fail),
            (true, Some(Detach), Some(false), true, UnmountStep::Fail),
        ];
        for (mounted, tried, answers, force, step) in TABLE {
            let state = UnmountState { mounted, tried, answers, force };
            assert_eq!(next_step(&state), step, "{state:?}");
        }
    }

    /// Every path through the ladder ends, and never detaches from a server that answers.
    #[test]
    fn ladder_ends_whatever_the_unmounts_do() {
        for (answers, force) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut state = UnmountState { mounted: true, tried: None, answers: None, force };
            let mut steps = Vec::new();
            loop {
                let step = next_step(&state);
                steps.push(step);
                match step {
                    UnmountStep::Unmount(mode) => state.tried = Some(mode),
                    UnmountStep::Probe => state.answers = Some(answers),
                    UnmountStep::Fail | UnmountStep::RemoveTarget => break,
                }
                assert!(steps.len() < 8, "{steps:?}");
            }
            assert_eq!(steps.contains(&UnmountStep::Unmount(Detach)), !answers, "{steps:?}");
            assert_eq!(steps.contains(&UnmountStep::Unmount(Force)), !answers && force, "{steps:?}");
        }
    }
}
