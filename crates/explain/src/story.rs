//! The story that is told: steps in the order in which things happen, and what could not be found out.

use std::fmt;

use serde_json::{Value, json};
use wharf_model::Time;

/// How far a step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is done.
    Done,
    /// It waits.
    Waits,
    /// It was tried and failed; it is tried again unless the text says otherwise.
    Failed,
    /// What it takes to know was not to be had.
    Unknown,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waits => "waits",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which object it is about, such as `claim default/data`.
    pub object: String,
    /// How far it has come.
    pub state: State,
    /// What is so, in plain words.
    pub says: String,
    /// Whose turn it is; empty when it is nobody's.
    pub whose: String,
    /// Since when it is so.
    pub since: Option<Time>,
    /// What was said when it failed last.
    pub error: Option<Said>,
}

/// What somebody said of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Who or where: an event's reason, a condition, a status.
    pub by: String,
    /// What.
    pub text: String,
    /// When last.
    pub at: Option<Time>,
}

impl Step {
    /// A step that is done.
    pub fn done(object: impl Into<String>, says: impl Into<String>) -> Self {
        Self::new(object, State::Done, says, "")
    }

    /// A step that waits for somebody.
    pub fn waits(object: impl Into<String>, says: impl Into<String>, whose: impl Into<String>) -> Self {
        Self::new(object, State::Waits, says, whose)
    }

    /// A step of which nobody knows.
    pub fn unknown(object: impl Into<String>, says: impl Into<String>) -> Self {
        Self::new(object, State::Unknown, says, "")
    }

    fn new(
        object: impl Into<String>,
        state: State,
        says: impl Into<String>,
        whose: impl Into<String>,
    ) -> Self {
        Self {
            object: object.into(),
            state,
            says: says.into(),
            whose: whose.into(),
            since: None,
            error: None,
        }
    }

    /// With the time since which it is so.
    #[must_use]
    pub fn since(mut self, since: Option<Time>) -> Self {
        self.since = since;
        self
    }

    /// With what was said when it failed; a step that waits has failed then.
    #[must_use]
    pub fn after(mut self, error: Option<Said>) -> Self {
        if error.is_some() && self.state == State::Waits {
            self.state = State::Failed;
        }
        self.error = error;
        self
    }
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// What was asked about.
    pub subject: String,
    /// The steps, up to the first that is not done.
    pub steps: Vec<Step>,
    /// What could not be read, and why.
    pub missing: Vec<String>,
    /// When it was told.
    pub now: Time,
}

impl Story {
    /// The step that everything waits for, if anything does.
    pub fn waits_for(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.state != State::Done)
    }

    /// For scripts: 0 when nothing is waited for, 3 when something is, 4 when it has failed, 5 when it cannot be told.
    pub fn exit_status(&self) -> u8 {
        match self.waits_for().map(|step| step.state) {
            None | Some(State::Done) => 0,
            Some(State::Waits) => 3,
            Some(State::Failed) => 4,
            Some(State::Unknown) => 5,
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let step = |step: &Step| {
            json!({
                "object": step.object, "state": step.state.word(), "says": step.says, "whose": step.whose,
                "since": step.since.map(|time| time.to_string()),
                "error": step.error.as_ref().map(|said| json!({
                    "by": said.by, "text": said.text, "at": said.at.map(|time| time.to_string()),
                })),
            })
        };
        json!({
            "subject": self.subject,
            "state": self.waits_for().map_or("done", |step| step.state.word()),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "missing": self.missing,
        })
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let mark = match step.state {
                State::Done => "✓",
                State::Waits => "…",
                State::Failed => "✗",
                State::Unknown => "?",
            };
            write!(f, "{mark} {}: {}", step.object, step.says)?;
            if let Some(since) = step.since {
                write!(f, " (for {})", ago(since, self.now))?;
            }
            writeln!(f)?;
            if !step.whose.is_empty() {
                writeln!(f, "    it is the turn of {}", step.whose)?;
            }
            if let Some(Said { by, text, at }) = &step.error {
                let when = at.map(|at| format!(", {} ago", ago(at, self.now))).unwrap_or_default();
                writeln!(f, "    last said ({by}{when}): {text}")?;
            }
        }
        for missing in &self.missing {
            writeln!(f, "! not known: {missing}")?;
        }
        Ok(())
    }
}

/// A time span as people read it.
fn ago(then: Time, now: Time) -> String {
    let seconds = (now.0 - then.0).max(0) / 1000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_that_is_not_done_is_the_answer() {
        let story =
            |steps: Vec<Step>| Story { subject: "s".into(), steps, missing: Vec::new(), now: Time(0) };
        let failed =
            Step::waits("c", "w", "x").after(Some(Said { by: "b".into(), text: "t".into(), at: None }));
        for (steps, status) in [
            (vec![], 0),
            (vec![Step::done("a", "d")], 0),
            (vec![Step::done("a", "d"), Step::waits("b", "w", "x")], 3),
            (vec![failed.clone(), Step::waits("b", "w", "x")], 4),
            (vec![Step::unknown("b", "?"), failed], 5),
        ] {
            assert_eq!(story(steps.clone()).exit_status(), status, "{steps:?}");
        }
    }

    #[test]
    fn for_people_and_for_programs() {
        let said = Said { by: "attachError".into(), text: "no room".into(), at: Some(Time(30_000)) };
        let story = Story {
            subject: "claim ns/data".into(),
            steps: vec![
                Step::done("claim ns/data", "bound"),
                Step::waits("volume pv", "it is to come", "the attacher")
                    .since(Some(Time(0)))
                    .after(Some(said)),
            ],
            missing: vec!["events: forbidden".into()],
            now: Time(60_000),
        };
        let text = "✓ claim ns/data: bound\n✗ volume pv: it is to come (for 60 s)\n    it is the turn of the \
                    attacher\n    last said (attachError, 30 s ago): no room\n! not known: events: forbidden\n";
        assert_eq!(story.to_string(), text);
        let json = story.json();
        assert_eq!((&json["state"], &json["subject"]), (&json!("failed"), &json!("claim ns/data")));
        assert_eq!(json["missing"], json!(["events: forbidden"]));
        assert_eq!(json["steps"][0]["error"], Value::Null);
        assert_eq!(
            json["steps"][1],
            json!({
                "object": "volume pv", "state": "failed", "says": "it is to come", "whose": "the attacher",
                "since": "1970-01-01T00:00:00Z",
                "error": {"by": "attachError", "text": "no room", "at": "1970-01-01T00:00:30Z"},
            })
        );
    }

    #[test]
    fn times_are_readable() {
        for (seconds, text) in
            [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")]
        {
            assert_eq!(ago(Time(0), Time(seconds * 1000)), text);
        }
    }
}
