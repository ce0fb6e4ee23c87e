//! The explanation: steps in the order in which they happen, and what could not be read.

use std::fmt;

use serde_json::{Value, json};
use wharf_model::Time;

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Completed.
    Done,
    /// Pending, without an error.
    Waiting,
    /// The last attempt failed. It is retried unless the message says otherwise.
    Failed,
    /// The objects that decide it could not be read.
    Unknown,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The object it is about, such as `claim default/data`.
    pub object: String,
    /// Its state.
    pub state: State,
    /// What happened, or what is pending.
    pub message: String,
    /// The component or user that has to act next; empty if none has to.
    pub waiting_for: String,
    /// When it reached this state.
    pub since: Option<Time>,
    /// The last error reported for it.
    pub error: Option<ReportedError>,
}

/// An error as a component reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedError {
    /// Where it was found: an event's reason, a condition, a status field, a sidecar's attempt.
    pub source: String,
    /// The error text.
    pub text: String,
    /// When it was last reported.
    pub at: Option<Time>,
}

impl Step {
    /// A completed step.
    pub fn done(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(object, State::Done, message, "")
    }

    /// A step that waits for a component or a user to act.
    pub fn waits(
        object: impl Into<String>,
        message: impl Into<String>,
        waiting_for: impl Into<String>,
    ) -> Self {
        Self::new(object, State::Waiting, message, waiting_for)
    }

    /// A step whose state could not be determined.
    pub fn unknown(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(object, State::Unknown, message, "")
    }

    fn new(
        object: impl Into<String>,
        state: State,
        message: impl Into<String>,
        waiting_for: impl Into<String>,
    ) -> Self {
        Self {
            object: object.into(),
            state,
            message: message.into(),
            waiting_for: waiting_for.into(),
            since: None,
            error: None,
        }
    }

    /// Sets when the step reached its state.
    #[must_use]
    pub fn since(mut self, since: Option<Time>) -> Self {
        self.since = since;
        self
    }

    /// Sets the last error. A waiting step with an error becomes a failed one.
    #[must_use]
    pub fn with_error(mut self, error: Option<ReportedError>) -> Self {
        if error.is_some() && self.state == State::Waiting {
            self.state = State::Failed;
        }
        self.error = error;
        self
    }
}

/// The explanation of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The explained object.
    pub subject: String,
    /// The steps, up to the first that is not done.
    pub steps: Vec<Step>,
    /// What could not be read, and the error.
    pub missing: Vec<String>,
    /// When the objects were read; ages are relative to it.
    pub now: Time,
}

impl Explanation {
    /// The first step that is not done.
    pub fn pending_step(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.state != State::Done)
    }

    /// The exit status for scripts: 0 if all steps are done, 3 if one is pending, 4 if its last attempt failed, 5 if
    /// its state is unknown.
    pub fn exit_status(&self) -> u8 {
        match self.pending_step().map(|step| step.state) {
            None | Some(State::Done) => 0,
            Some(State::Waiting) => 3,
            Some(State::Failed) => 4,
            Some(State::Unknown) => 5,
        }
    }

    /// The explanation as JSON, for programs.
    pub fn json(&self) -> Value {
        let step = |step: &Step| {
            json!({
                "object": step.object, "state": step.state.as_str(), "message": step.message,
                "waiting_for": step.waiting_for, "since": step.since.map(|time| time.to_string()),
                "error": step.error.as_ref().map(|error| json!({
                    "source": error.source, "message": error.text, "time": error.at.map(|time| time.to_string()),
                })),
            })
        };
        json!({
            "subject": self.subject,
            "state": self.pending_step().map_or("done", |step| step.state.as_str()),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "missing": self.missing,
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let mark = match step.state {
                State::Done => "✓",
                State::Waiting => "…",
                State::Failed => "✗",
                State::Unknown => "?",
            };
            write!(f, "{mark} {}: {}", step.object, step.message)?;
            if let Some(since) = step.since {
                write!(f, " (for {})", ago(since, self.now))?;
            }
            writeln!(f)?;
            if !step.waiting_for.is_empty() {
                writeln!(f, "    waiting for: {}", step.waiting_for)?;
            }
            if let Some(ReportedError { source, text, at }) = &step.error {
                let when = at.map(|at| format!(", {} ago", ago(at, self.now))).unwrap_or_default();
                writeln!(f, "    last error ({source}{when}): {text}")?;
            }
        }
        for missing in &self.missing {
            writeln!(f, "! incomplete: {missing}")?;
        }
        Ok(())
    }
}

/// A human-readable time span.
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
    fn exit_status_is_that_of_the_first_step_not_done() {
        let explanation =
            |steps: Vec<Step>| Explanation { subject: "s".into(), steps, missing: Vec::new(), now: Time(0) };
        let failed = Step::waits("c", "w", "x").with_error(Some(ReportedError {
            source: "b".into(),
            text: "t".into(),
            at: None,
        }));
        for (steps, status) in [
            (vec![], 0),
            (vec![Step::done("a", "d")], 0),
            (vec![Step::done("a", "d"), Step::waits("b", "w", "x")], 3),
            (vec![failed.clone(), Step::waits("b", "w", "x")], 4),
            (vec![Step::unknown("b", "?"), failed], 5),
        ] {
            assert_eq!(explanation(steps.clone()).exit_status(), status, "{steps:?}");
        }
    }

    #[test]
    fn text_and_json_output() {
        let error =
            ReportedError { source: "attachError".into(), text: "no room".into(), at: Some(Time(30_000)) };
        let explanation = Explanation {
            subject: "claim ns/data".into(),
            steps: vec![
                Step::done("claim ns/data", "bound"),
                Step::waits("volume pv", "attaching to node n", "the attacher")
                    .since(Some(Time(0)))
                    .with_error(Some(error)),
            ],
            missing: vec!["events: forbidden".into()],
            now: Time(60_000),
        };
        let text = "✓ claim ns/data: bound\n✗ volume pv: attaching to node n (for 60 s)\n    waiting for: the \
                    attacher\n    last error (attachError, 30 s ago): no room\n! incomplete: events: forbidden\n";
        assert_eq!(explanation.to_string(), text);
        let json = explanation.json();
        assert_eq!((&json["state"], &json["subject"]), (&json!("failed"), &json!("claim ns/data")));
        assert_eq!(json["missing"], json!(["events: forbidden"]));
        assert_eq!(json["steps"][0]["error"], Value::Null);
        assert_eq!(
            json["steps"][1],
            json!({
                "object": "volume pv", "state": "failed", "message": "attaching to node n",
                "waiting_for": "the attacher", "since": "1970-01-01T00:00:00Z",
                "error": {"source": "attachError", "message": "no room", "time": "1970-01-01T00:00:30Z"},
            })
        );
    }

    #[test]
    fn time_spans_are_human_readable() {
        for (seconds, text) in
            [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")]
        {
            assert_eq!(ago(Time(0), Time(seconds * 1000)), text);
        }
    }
}
