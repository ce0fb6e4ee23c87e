//! Test intents.

use serde_json::json;

use crate::provisioner::intent::{Intent, IntentClaim, Request};

/// An intent for a volume of this name.
pub(crate) fn intent(volume: &str) -> Intent {
    Intent {
        volume: volume.to_owned(),
        claim: IntentClaim { namespace: "ns".to_owned(), name: volume.to_owned(), uid: volume.to_owned() },
        class_uid: "class".to_owned(),
        written: 0,
        request: Request::default(),
        template: json!({"spec": {"csi": {}}}),
    }
}
