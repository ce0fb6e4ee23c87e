//! Puts a driver together from what its backend can do, and serves it.

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name by which the orchestrator's calls will know this node.
    pub node_id: String,
    /// How many volumes can be on this node at once; 0 for no limit known.
    pub max_volumes: i64,
}
