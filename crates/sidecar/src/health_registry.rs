//! One HTTP endpoint for a process with several parts, as `wharf up` and `wharf node` are.
//!
//! `/metrics` merges the metrics of all parts and adds the label `part`, `/debug/attempts` concatenates their
//! attempts, and `/healthz` reports that the process is up.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use wharf_csi::{HttpPage, PageListener, serve_pages};
use wharf_model::{Attempt, attempt};

use crate::metrics;

/// Encodes a part's metrics on request.
type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;
/// Lists a part's attempts on request.
type ListAttempts = Arc<dyn Fn() -> Vec<Attempt> + Send + Sync>;

/// The registered parts of a process. Clones share them.
#[derive(Clone, Default)]
pub struct HealthRegistry {
    parts: Arc<Mutex<BTreeMap<String, Part>>>,
}

#[derive(Clone)]
struct Part {
    metrics: EncodeMetrics,
    attempts: Option<ListAttempts>,
}

impl fmt::Debug for HealthRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthRegistry").field("parts", &self.parts().keys().collect::<Vec<_>>()).finish()
    }
}

impl HealthRegistry {
    /// Registers a part's metrics, encoded as OpenMetrics text. Replaces an earlier part of the same name.
    pub fn register(&self, name: impl Into<String>, metrics: impl Fn() -> String + Send + Sync + 'static) {
        self.put(name.into(), Part { metrics: Arc::new(metrics), attempts: None });
    }

    /// Registers a part's metrics and its attempts.
    pub fn register_with_attempts(
        &self,
        name: impl Into<String>,
        metrics: impl Fn() -> String + Send + Sync + 'static,
        attempts: impl Fn() -> Vec<Attempt> + Send + Sync + 'static,
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

    /// Serves the pages until the future is dropped.
    pub async fn serve(self, listener: impl Into<PageListener>) {
        serve_pages(listener, move |path| {
            let page = self.page(&path);
            async move { page }
        })
        .await;
    }

    fn page(&self, path: &str) -> HttpPage {
        match path {
            "/healthz" => HttpPage::text(StatusCode::OK, "ok"),
            "/metrics" => {
                let parts = self.parts();
                let parts = parts.iter().map(|(name, part)| (name.as_str(), (part.metrics)()));
                HttpPage::metrics(merge(parts.chain([("process", metrics::encode_panics())])))
            }
            attempt::PATH => {
                let lists = self.parts().into_values().filter_map(|part| part.attempts);
                let all: Vec<Attempt> = lists.flat_map(|list| list()).collect();
                HttpPage::text(StatusCode::OK, attempt::page(&all))
            }
            _ => HttpPage::text(
                StatusCode::NOT_FOUND,
                "not found; available: /metrics, /debug/attempts, /healthz\n",
            ),
        }
    }
}

/// Merges the parts' texts so that each metric family appears once, with the samples of all parts.
fn merge<'a>(parts: impl Iterator<Item = (&'a str, String)>) -> String {
    let mut families: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for (part, text) in parts {
        let mut family = String::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(header) = line.strip_prefix("# ") {
                family = header.split(' ').nth(1).unwrap_or_default().to_owned();
                let (headers, _) = families.entry(family.clone()).or_default();
                if !headers.iter().any(|header| header == line) {
                    headers.push(line.to_owned());
                }
            } else {
                families.entry(family.clone()).or_default().1.push(add_part_label(line, part));
            }
        }
    }
    let mut all = String::new();
    for line in families.into_values().flat_map(|(headers, samples)| headers.into_iter().chain(samples)) {
        // Writing to a String does not fail.
        let _ = writeln!(all, "{line}");
    }
    all + "# EOF\n"
}

fn add_part_label(sample: &str, part: &str) -> String {
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
    use super::*;

    #[test]
    fn merged_text_has_each_family_once() {
        let one = "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{code=\"OK\"} 1\n# EOF\n";
        let two = "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{code=\"OK\"} 2\n\
                   # HELP up Whether.\n# TYPE up gauge\nup 1\n# EOF\n";
        let merged = merge([("a.example.com", one.to_owned()), ("node", two.to_owned())].into_iter());
        let expected = "# HELP calls Calls.\n# TYPE calls counter\n\
                        calls_total{part=\"a.example.com\",code=\"OK\"} 1\ncalls_total{part=\"node\",code=\"OK\"} 2\n\
                        # HELP up Whether.\n# TYPE up gauge\nup{part=\"node\"} 1\n# EOF\n";
        assert_eq!(merged, expected);
        assert_eq!(merge(std::iter::empty()), "# EOF\n");
        assert_eq!(add_part_label("x{} 1", "a"), "x{part=\"a\"} 1");
    }

    #[test]
    fn pages_combine_all_parts() {
        let registry = HealthRegistry::default();
        registry.register("node", || "# TYPE up gauge\nup 1\n# EOF\n".to_owned());
        let attempts = vec![Attempt { role: "attacher".into(), ..Attempt::default() }];
        let page = HttpPage::text(StatusCode::OK, attempt::page(&attempts));
        registry.register_with_attempts("d".to_owned(), || "# EOF\n".to_owned(), move || attempts.clone());
        assert_eq!(registry.page("/debug/attempts"), page);
        let own = "# TYPE up gauge\nup 1\n# EOF\n".to_owned();
        let all = merge([("node", own), ("process", metrics::encode_panics())].into_iter());
        assert!(all.contains("# TYPE wharf_panics counter\n"), "{all}");
        assert_eq!(registry.page("/metrics"), HttpPage::metrics(all));
        assert_eq!(registry.page("/healthz"), HttpPage::text(StatusCode::OK, "ok"));
        assert_ne!(registry.page("/"), registry.page("/healthz"));
    }
}
