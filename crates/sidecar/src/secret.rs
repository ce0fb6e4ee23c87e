//! Secrets for calls to the driver: read when they are needed, kept nowhere, so that a rotated one counts at once.

use std::collections::BTreeMap;

use wharf_cluster::{ApiError, Cluster};
use wharf_model::secret::NotText;
use wharf_model::{Secret, SecretRef};

/// Why there is no secret. Never names a value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// It is not there.
    #[error("secret {0} does not exist: create it, or correct the StorageClass parameters that name it")]
    Missing(wharf_model::Key),
    /// It cannot be sent.
    #[error("secret {key}: {source}")]
    NotText { key: wharf_model::Key, source: NotText },
    /// The API server did not give it.
    #[error("cannot read the secret: {0}")]
    Api(#[from] ApiError),
}

/// The values of a secret; none for no secret.
pub(crate) async fn read(
    cluster: &Cluster,
    secret: Option<&SecretRef>,
) -> Result<BTreeMap<String, String>, SecretError> {
    let Some(secret) = secret else { return Ok(BTreeMap::new()) };
    let key = secret.key();
    let Some(found) = cluster.get::<Secret>(&key).await? else { return Err(SecretError::Missing(key)) };
    found.data.into_text().map_err(|source| SecretError::NotText { key, source })
}

/// A driver's words without the secrets that it was given. Values of a few letters stay: they would be found in
/// any sentence, and hide no secret.
pub(crate) fn without(words: &str, secrets: &BTreeMap<String, String>) -> String {
    let mut words = words.to_owned();
    for value in secrets.values().filter(|value| value.len() > 3) {
        words = words.replace(value.as_str(), "***");
    }
    words
}
