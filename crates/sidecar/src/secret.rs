//! Secrets for calls to the driver. They are read for each call and never cached, so a rotated secret takes effect at
//! once.

use std::collections::BTreeMap;

use wharf_cluster::{ApiError, Cluster};
use wharf_model::secret::NotUtf8;
use wharf_model::{Secret, SecretRef};

/// Why a secret could not be read. Never contains a value of the secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("secret {0} does not exist: create it, or correct the class whose parameters name it")]
    Missing(wharf_model::Key),
    #[error("secret {key}: {source}")]
    NotText { key: wharf_model::Key, source: NotUtf8 },
    #[error("failed to read secret: {0}")]
    Api(#[from] ApiError),
}

/// Reads the values of a secret. Without a reference there are none.
pub(crate) async fn read(
    cluster: &Cluster,
    secret: Option<&SecretRef>,
) -> Result<BTreeMap<String, String>, SecretError> {
    let Some(secret) = secret else { return Ok(BTreeMap::new()) };
    let key = secret.key();
    let Some(found) = cluster.get::<Secret>(&key).await? else { return Err(SecretError::Missing(key)) };
    found.data.into_text().map_err(|source| SecretError::NotText { key, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attach, expansion and snapshots read secrets, too.
    #[test]
    fn missing_secret_does_not_blame_one_kind_of_class() {
        let text = SecretError::Missing(wharf_model::Key::namespaced("ns", "s")).to_string();
        assert_eq!(
            text,
            "secret ns/s does not exist: create it, or correct the class whose parameters name it"
        );
    }
}
