//! Reference checks against a server inside the test.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

const DRIVER: &str = "d.test";

fn attachment(name: &str, volume: Value, version: u64) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("u-{name}"), "resourceVersion": version.to_string()},
        "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": volume}},
    })
}

/// A server with these attachments at version 10. The store lists all of them. The check reads one page, which is the
/// whole list only if `is_whole`, at version 20.
struct Fixture {
    cluster: Cluster,
    attachments: Store<VolumeAttachment>,
    watch: UnboundedSender<Result<Frame<Bytes>, Infallible>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    async fn new(objects: Vec<Value>, is_whole: bool) -> Self {
        let (watch, stream) = unbounded_channel();
        let stream = Arc::new(Mutex::new(Some(stream)));
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let received = Arc::clone(&requests);
        let server = tower::service_fn(move |request: Request<Body>| {
            let (objects, stream, received) = (objects.clone(), Arc::clone(&stream), Arc::clone(&received));
            async move {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
                if query.contains("watch=") {
                    let Some(stream) = stream.lock().unwrap().take() else {
                        return std::future::pending().await;
                    };
                    let body: BoxBody<Bytes, Infallible> =
                        StreamBody::new(UnboundedReceiverStream::new(stream)).boxed();
                    return Ok::<_, Infallible>(Response::new(body));
                }
                let name = path.rsplit('/').next().unwrap_or_default();
                let body = if name == "volumeattachments" {
                    let first = received.lock().unwrap().is_empty();
                    let token = if first || is_whole { "" } else { "more" };
                    let version = if first { "10" } else { "20" };
                    json!({"metadata": {"resourceVersion": version, "continue": token}, "items": objects})
                } else {
                    objects.iter().find(|object| object["metadata"]["name"] == name).cloned().unwrap()
                };
                received.lock().unwrap().push(name.to_owned());
                Ok(Response::new(Full::from(body.to_string()).boxed()))
            }
        });
        let cluster = Cluster::with_client(kube::Client::new(server, "default"));
        let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
        attachments.add_index(BY_SUBJECT, |attachment| vec![Subject::of(attachment).index()]);
        attachments.wait_synced().await;
        Self { cluster, attachments, watch, requests }
    }

    fn checker(&self) -> ReferenceChecker<'_> {
        ReferenceChecker { cluster: &self.cluster, attachments: &self.attachments, driver: DRIVER }
    }

    /// Sends a watch event and waits until the store has it.
    async fn deliver(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watch.send(Ok(Frame::data(line.into()))).unwrap();
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        while !self.attachments.has_reached(version) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The requests of the checks, without the list of the store.
    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap()[1..].to_vec()
    }
}

fn volumes(names: &[&str]) -> DeletedVolumes {
    names.iter().map(|name| ((*name).to_owned(), format!("u-{name}"))).collect()
}

fn done(checked: &[&str], unreferenced: &[&str]) -> ReferenceCheck {
    blocked(checked, unreferenced, &[])
}

fn blocked(checked: &[&str], unreferenced: &[&str], blocked: &[&str]) -> ReferenceCheck {
    ReferenceCheck::Done {
        checked: volumes(checked),
        unreferenced: volumes(unreferenced),
        blocked: volumes(blocked),
    }
}

/// Finding S-M3: a thousand volumes cost one request, which has one page.
#[tokio::test]
async fn whole_first_page_is_the_proof() {
    let fixture = Fixture::new(vec![attachment("a", json!("used"), 5)], true).await;
    let checked = fixture.checker().start(volumes(&["free", "used"])).await.unwrap();
    assert_eq!(checked, done(&["free", "used"], &["free"]));
    assert_eq!(fixture.requests(), ["volumeattachments"]);
}

/// An attachment may exist that the store does not have yet.
#[tokio::test]
async fn stale_store_is_no_proof() {
    let fixture = Fixture::new(vec![attachment("a", json!("used"), 5)], false).await;
    let awaited = AwaitedVersion { version: "20".into(), volumes: volumes(&["free", "late", "used"]) };
    let check = fixture.checker().start(awaited.volumes.clone()).await.unwrap();
    assert_eq!(check, ReferenceCheck::Await(awaited.clone()));
    fixture.deliver("ADDED", &attachment("b", json!("late"), 19)).await;
    let check = fixture.checker().resume(awaited.clone()).await.unwrap();
    assert_eq!(check, ReferenceCheck::Await(awaited.clone()));
    fixture.deliver("BOOKMARK", &json!({"metadata": {"resourceVersion": "20"}})).await;
    let check = fixture.checker().resume(awaited).await.unwrap();
    assert_eq!(check, done(&["free", "late", "used"], &["free"]));
    assert_eq!(fixture.requests(), ["volumeattachments"], "no further page");
}

/// After a restore of the server's data, the store may lack attachments of the restored data.
#[tokio::test]
async fn server_older_than_the_store_is_no_proof() {
    let fixture = Fixture::new(Vec::new(), false).await;
    fixture.deliver("BOOKMARK", &json!({"metadata": {"resourceVersion": "30"}})).await;
    let error = fixture.checker().start(volumes(&["free"])).await.unwrap_err();
    assert!(
        matches!(&error, ReferenceError::OlderServer { server, reached } if server == "20" && reached == "30"),
        "{error}"
    );
}

/// Finding S-M3: one bad object of any driver blocked the deletion of all volumes.
#[tokio::test]
async fn undecodable_attachment_blocks_only_the_volume_that_it_names() {
    let broken = |name: &str, source: Value, attacher: &str| {
        let mut object = attachment(name, Value::Null, 5);
        object["spec"] = json!({"attacher": attacher, "nodeName": [], "source": source});
        object
    };
    let named = broken("a", json!({"persistentVolumeName": "used"}), DRIVER);
    let other = broken("b", json!(7), "other");
    let ours = broken("c", json!(7), DRIVER);
    for is_whole in [true, false] {
        let fixture = Fixture::new(vec![named.clone(), other.clone()], is_whole).await;
        if !is_whole {
            fixture.deliver("BOOKMARK", &json!({"metadata": {"resourceVersion": "20"}})).await;
        }
        let check = fixture.checker().start(volumes(&["free", "used"])).await.unwrap();
        assert_eq!(check, blocked(&["free"], &["free"], &["used"]), "whole: {is_whole}");
        let fixture = Fixture::new(vec![ours.clone()], is_whole).await;
        if !is_whole {
            fixture.deliver("BOOKMARK", &json!({"metadata": {"resourceVersion": "20"}})).await;
        }
        let error = fixture.checker().start(volumes(&["free"])).await.unwrap_err();
        assert!(matches!(error, ReferenceError::Unreadable(name) if name == "c"), "whole: {is_whole}");
    }
}

#[test]
fn raw_attachment_names_its_volume() {
    let attachment =
        |attacher: Value, source: Value| json!({"spec": {"attacher": attacher, "source": source}});
    let inline = || json!({"inlineVolumeSpec": {}});
    for (attacher, source, expected) in [
        (json!(DRIVER), json!({"persistentVolumeName": "v"}), RawReference::Volume("v")),
        (json!("other"), json!({"persistentVolumeName": "v"}), RawReference::Volume("v")),
        (Value::Null, json!({"persistentVolumeName": "v"}), RawReference::Volume("v")),
        (json!("other"), json!({"persistentVolumeName": 1}), RawReference::NotOurs),
        (json!(DRIVER), json!({"persistentVolumeName": 1}), RawReference::Unknown),
        (json!(DRIVER), inline(), RawReference::NotOurs),
        (Value::Null, inline(), RawReference::NotOurs),
        (json!(DRIVER), Value::Null, RawReference::Unknown),
        (Value::Null, Value::Null, RawReference::Unknown),
    ] {
        let raw = attachment(attacher, source);
        assert_eq!(raw_reference(&raw, DRIVER), expected, "{raw}");
    }
}
