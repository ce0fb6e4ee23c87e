//! The pages of a process with several parts, as one: `/metrics` of all, each with its part's name in the label `part`;
//! `/debug/attempts` of all; `/healthz`. `wharf up` and `wharf node` have it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use serde_json::Value;
use wharf_csi::{Page, PageListener, serve_pages};

/// A part's metrics, made when they are asked for.
type Text = Arc<dyn Fn() -> String + Send + Sync>;
/// What a part tried, as a list.
type List = Arc<dyn Fn() -> Value + Send + Sync>;

/// See the module; clones are the same.
#[derive(Clone, Default)]
pub struct Board {
    parts: Arc<Mutex<BTreeMap<String, Part>>>,
}

#[derive(Clone)]
struct Part {
    metrics: Text,
    attempts: Option<List>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("parts", &self.parts().keys().collect::<Vec<_>>()).finish()
    }
}

impl Board {
    /// Shows a part's metrics, in the format of OpenMetrics. One of this name that was there is replaced.
    pub fn show(&self, name: impl Into<String>, metrics: impl Fn() -> String + Send + Sync + 'static) {
        self.put(name.into(), Part { metrics: Arc::new(metrics), attempts: None });
    }

    /// The same of a part that tells what it tried, as a list in the form that a sidecar's page has.
    pub fn show_with_attempts(
        &self,
        name: impl Into<String>,
        metrics: impl Fn() -> String + Send + Sync + 'static,
        attempts: impl Fn() -> Value + Send + Sync + 'static,
    ) {
        self.put(name.into(), Part { metrics: Arc::new(metrics), attempts: Some(Arc::new(attempts)) });
    }

    fn put(&self, name: String, part: Part) {
        self.lock().insert(name, part);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> BTreeMap<String, Part> {
        self.lock().clone()
    }

    /// Serves the pages until it is dropped.
    pub async fn serve(self, listener: impl Into<PageListener>) {
        serve_pages(listener, move |path| {
            let page = self.page(&path);
            async move { page }
        })
        .await;
    }

    fn page(&self, path: &str) -> Page {
        match path {
            "/healthz" => Page::text(StatusCode::OK, "ok"),
            "/metrics" => {
                let parts = self.parts();
                Page::metrics(merge(parts.iter().map(|(name, part)| (name.as_str(), (part.metrics)()))))
            }
            "/debug/attempts" => {
                let lists = self.parts().into_values().filter_map(|part| part.attempts);
                let all = lists.flat_map(|list| match list() {
                    Value::Array(list) => list,
                    _ => Vec::new(),
                });
                Page::text(StatusCode::OK, format!("{:#}\n", Value::Array(all.collect())))
            }
            _ => Page::text(StatusCode::NOT_FOUND, "there are /metrics, /debug/attempts and /healthz\n"),
        }
    }
}

/// One text of several: a family is there once, with the samples of all parts.
fn merge<'a>(parts: impl Iterator<Item = (&'a str, String)>) -> String {
    let mut families: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for (part, text) in parts {
        let mut family = String::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(about) = line.strip_prefix("# ") {
                family = about.split(' ').nth(1).unwrap_or_default().to_owned();
                let (heads, _) = families.entry(family.clone()).or_default();
                if !heads.iter().any(|head| head == line) {
                    heads.push(line.to_owned());
                }
            } else {
                families.entry(family.clone()).or_default().1.push(labelled(line, part));
            }
        }
    }
    let mut all = String::new();
    for line in families.into_values().flat_map(|(heads, samples)| heads.into_iter().chain(samples)) {
        // Writing to a String does not fail.
        let _ = writeln!(all, "{line}");
    }
    all + "# EOF\n"
}

fn labelled(sample: &str, part: &str) -> String {
    let at = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(at);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{part={part:?}{labels}"),
        Some(labels) => format!("{name}{{part={part:?},{labels}"),
        None => format!("{name}{{part={part:?}}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_family_is_there_once() {
        let one = "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{code=\"OK\"} 1\n# EOF\n";
        let two = "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{code=\"OK\"} 2\n\
                   # HELP up Whether.\n# TYPE up gauge\nup 1\n# EOF\n";
        let merged = merge([("a.example.com", one.to_owned()), ("node", two.to_owned())].into_iter());
        let expected = "# HELP calls Calls.\n# TYPE calls counter\n\
                        calls_total{part=\"a.example.com\",code=\"OK\"} 1\ncalls_total{part=\"node\",code=\"OK\"} 2\n\
                        # HELP up Whether.\n# TYPE up gauge\nup{part=\"node\"} 1\n# EOF\n";
        assert_eq!(merged, expected);
        assert_eq!(merge(std::iter::empty()), "# EOF\n");
        assert_eq!(labelled("x{} 1", "a"), "x{part=\"a\"} 1");
    }

    #[test]
    fn pages_of_all_parts() {
        let board = Board::default();
        board.show("node", || "# TYPE up gauge\nup 1\n# EOF\n".to_owned());
        board.show_with_attempts("d".to_owned(), || "# EOF\n".to_owned(), || json!([{"role": "attacher"}]));
        let attempts = Page::text(StatusCode::OK, format!("{:#}\n", json!([{"role": "attacher"}])));
        assert_eq!(board.page("/debug/attempts"), attempts);
        let metrics = Page::metrics("# TYPE up gauge\nup{part=\"node\"} 1\n# EOF\n".to_owned());
        assert_eq!(board.page("/metrics"), metrics);
        assert_eq!(board.page("/healthz"), Page::text(StatusCode::OK, "ok"));
        assert_ne!(board.page("/"), board.page("/healthz"));
    }
}
