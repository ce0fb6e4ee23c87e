//! Labels and annotations of claims, for templates in `subDir`.

use std::collections::BTreeMap;

use async_trait::async_trait;

/// The labels and annotations of a PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimMetadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Reads claims. A provisioner passes only names.
#[async_trait]
pub trait Claims: Send + Sync + 'static {
    /// The metadata of a claim; `None` if it does not exist. The error says why it could not be read.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimMetadata>, String>;
}
