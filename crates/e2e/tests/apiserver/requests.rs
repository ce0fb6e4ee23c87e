//! Requests and responses, case by case, on both servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::normalize;
use crate::servers::{AUTHORITY, MOMENT, Servers, Side};

/// One case in its own namespace, `${ns}`. `${much}` is a million characters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The rule that the case covers.
    rule: String,
    steps: Vec<Step>,
}

/// One request.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Step {
    /// `POST /api/v1/...`; or `FORGET` and a revision: see [`Servers::compact`].
    send: String,
    #[serde(default)]
    body: Value,
    /// A raw body: not JSON, or invalid JSON.
    raw: Option<String>,
    /// The content type of the body.
    #[serde(rename = "as", default)]
    content_type: Option<String>,
    accept: Option<String>,
    /// Values that later steps refer to as `${name}`, by JSON pointer.
    #[serde(default)]
    keep: BTreeMap<String, String>,
    /// Not compared: preparation only.
    #[serde(default)]
    quiet: bool,
    /// The number of repetitions, one by default; `${time}` is the current repetition.
    times: Option<usize>,
}

fn cases() -> Vec<Case> {
    serde_saphyr::from_str(&crate::read("requests.yaml")).unwrap()
}

mod cluster {
    use super::*;

    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn requests_get_same_responses() {
        let servers = Servers::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clients = [Side::Theirs, Side::Ours].map(|side| (side, runtime.block_on(client(&servers, side))));
        let only = std::env::var("ONLY").unwrap_or_default();
        let chosen = cases().into_iter().enumerate().filter(|(_, case)| case.name.contains(&only));
        let judged = chosen.map(|(number, case)| {
            let namespace = format!("case-{number:03}");
            let [theirs, ours] = clients
                .each_ref()
                .map(|(side, client)| runtime.block_on(run(&servers, *side, client, &namespace, &case)));
            (format!("{}: {}", case.name, case.rule), normalize::difference(&theirs, &ours))
        });
        crate::judge("requests", &crate::read("requests-allowed.yaml"), judged.collect());
    }
}

pub(crate) async fn client(servers: &Servers, side: Side) -> kube::Client {
    wharf_testkit::connect(&servers.kubeconfig(side)).await.unwrap()
}

/// Runs a case; returns the responses as lines of code and fields.
async fn run(
    servers: &Servers,
    side: Side,
    client: &kube::Client,
    namespace: &str,
    case: &Case,
) -> Vec<String> {
    let much = "~".repeat(1_000_000);
    let kept = [("ns", namespace), ("much", &much)].map(|(name, to)| (name.to_owned(), to.to_owned()));
    let mut kept = BTreeMap::from(kept);
    let begin = quiet("POST /api/v1/namespaces", json!({"metadata": {"name": namespace}}));
    let furnished = quiet(&format!("GET /api/v1/namespaces/${{ns}}/configmaps/{AUTHORITY}"), Value::Null);
    let mut lines = Vec::new();
    for (number, step) in [begin].iter().chain(&case.steps).enumerate() {
        if let Some(revision) = step.send.strip_prefix("FORGET ") {
            servers.compact(side, &placed(revision, &kept));
            continue;
        }
        let (mut code, mut response) = (0, Value::Null);
        for time in 1..=step.times.unwrap_or(1) {
            kept.insert("time".to_owned(), time.to_string());
            (code, response) = send(client, step, &kept).await;
        }
        if number == 0 {
            let until = Instant::now() + MOMENT;
            while send(client, &furnished, &kept).await.0 != 200 {
                assert!(Instant::now() < until, "{namespace} has no {AUTHORITY}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for (name, pointer) in &step.keep {
            let value = response.pointer(pointer).cloned().unwrap_or_default();
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            kept.insert(name.clone(), text);
        }
        if step.quiet {
            assert!(code < 300, "{}: step {number}, {}: {code} {response}", case.name, step.send);
            continue;
        }
        normalize::value(&mut response);
        lines.push(format!("{number} code = {code}"));
        lines.extend(normalize::leaves(&response).into_iter().map(|line| format!("{number} {line}")));
    }
    lines
}

/// A step whose response is not compared.
fn quiet(send: &str, body: Value) -> Step {
    let (send, keep) = (send.to_owned(), BTreeMap::new());
    Step { send, body, raw: None, content_type: None, accept: None, keep, quiet: true, times: None }
}

/// Substitutes all `${name}`.
fn placed(text: &str, kept: &BTreeMap<String, String>) -> String {
    kept.iter().fold(text.to_owned(), |text, (name, to)| text.replace(&format!("${{{name}}}"), to))
}

async fn send(client: &kube::Client, step: &Step, kept: &BTreeMap<String, String>) -> (u16, Value) {
    let body = match (&step.raw, &step.body) {
        (Some(raw), _) => placed(raw, kept),
        (None, Value::Null) => String::new(),
        (None, body) => placed(&body.to_string(), kept),
    };
    let media = step.content_type.as_deref().unwrap_or("application/json");
    let body = (!body.is_empty()).then_some((media, body));
    send_request(client, &placed(&step.send, kept), step.accept.as_deref(), body).await.unwrap()
}

/// Sends `METHOD PATH` with a body of a content type. Returns the status code and the response body: JSON, a list
/// of JSON lines, or a string.
pub(crate) async fn send_request(
    client: &kube::Client,
    target: &str,
    accept: Option<&str>,
    body: Option<(&str, String)>,
) -> Result<(u16, Value), kube::Error> {
    let (method, path) = target.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("accept", accept.unwrap_or("application/json"));
    let (media, body) = body.unwrap_or_default();
    if !body.is_empty() {
        request = request.header("content-type", media);
    }
    let response = client.send(request.body(body.into_bytes().into()).unwrap()).await?;
    let code = response.status().as_u16();
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
    Ok(match lines {
        Ok(mut one) if one.len() == 1 && !target.contains("watch=") => (code, one.remove(0)),
        Ok(many) => (code, many.into()),
        Err(_) => (code, text.into_owned().into()),
    })
}

#[test]
fn request_cases_parse_and_have_unique_names() {
    let cases = cases();
    assert!(cases.iter().all(|case| !case.rule.is_empty() && !case.steps.is_empty()));
    let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases have the same name");
}
