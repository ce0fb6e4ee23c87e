//! The format of `/debug/attempts`: the last attempt for each object. Sidecars and the node agent write it,
//! `wharf explain` reads it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Time;

/// The path of the page.
pub const PATH: &str = "/debug/attempts";
/// The role of the node agent.
pub const NODE_ROLE: &str = "node";

/// The last attempt of a role for an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// The role that tried.
    pub role: String,
    /// The object: its key, or its name or UID where the role uses that.
    pub object: String,
    /// When it was tried.
    pub time: Option<Time>,
    /// The step, most often a CSI method.
    pub step: String,
    /// The error; `None` if it succeeded.
    pub error: Option<String>,
    /// Consecutive failures.
    pub failures: u32,
}

/// The page as text.
pub fn page(attempts: &[Attempt]) -> String {
    format!("{:#}\n", json!(attempts))
}

/// Parses the page.
pub fn parse_page(page: &[u8]) -> serde_json::Result<Vec<Attempt>> {
    serde_json::from_slice(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fixed text: other versions read it, and scripts.
    #[test]
    fn page_round_trips_as_a_json_array() {
        let failed = Attempt {
            role: "attacher".into(),
            object: "csi-1".into(),
            time: Some(Time(1_000)),
            step: "ControllerPublishVolume".into(),
            error: Some("no".into()),
            failures: 2,
        };
        let text = "[\n  {\n    \"error\": \"no\",\n    \"failures\": 2,\n    \"object\": \"csi-1\",\n    \
                    \"role\": \"attacher\",\n    \"step\": \"ControllerPublishVolume\",\n    \
                    \"time\": \"1970-01-01T00:00:01Z\"\n  }\n]\n";
        assert_eq!(page(std::slice::from_ref(&failed)), text);
        let succeeded = Attempt { error: None, failures: 0, ..failed.clone() };
        assert!(page(std::slice::from_ref(&succeeded)).contains("\"error\": null"));
        let both = [failed, succeeded];
        assert_eq!(parse_page(page(&both).as_bytes()).unwrap(), both);
        assert_eq!(page(&[]), "[]\n");
        assert_eq!(parse_page(br#"[{"role": "node", "new": 1}]"#).unwrap()[0].role, "node");
        assert!(parse_page(b"{}").is_err());
    }
}
