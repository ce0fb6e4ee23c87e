//! Azure File. A volume's handle has the resource group, the storage account, the share, the volume's name and the
//! namespace of the secret.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::source::AzureFile;
use super::{Plugin, TranslationError};
use crate::volume::{ClaimRef, CsiVolumeSource};
use crate::{Meta, SecretRef};

/// Annotation with the resource group of the storage account.
pub(super) const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const SHARE_NAME: &str = "sharename";
/// Around the storage account in the name of its secret.
const SECRET_PREFIX: &str = "azure-storage-account-";
const SECRET_SUFFIX: &str = "-secret";

pub(super) fn to_csi(
    source: &AzureFile,
    meta: &Meta,
    claim: Option<&ClaimRef>,
) -> Result<CsiVolumeSource, TranslationError> {
    let AzureFile { secret_name, share_name, .. } = source;
    let namespace = source.secret_namespace.as_ref().or_else(|| claim.map(|claim| &claim.namespace));
    let namespace =
        namespace.filter(|namespace| !namespace.is_empty()).ok_or(TranslationError::NoSecretNamespace)?;
    let account = storage_account(secret_name).unwrap_or(secret_name);
    let group = meta.annotation(RESOURCE_GROUP).unwrap_or_default();
    Ok(CsiVolumeSource {
        driver: Plugin::AzureFile.driver().to_owned(),
        volume_handle: format!("{group}#{account}#{share_name}#{}#{namespace}", meta.name),
        read_only: source.read_only,
        volume_attributes: [(SHARE_NAME, share_name)].into_iter().collect(),
        node_stage_secret_ref: Some(Box::new(SecretRef {
            name: secret_name.clone(),
            namespace: namespace.clone(),
        })),
        ..CsiVolumeSource::default()
    })
}

/// The source, and the resource group if it is known.
pub(super) fn to_in_tree(csi: &CsiVolumeSource) -> Result<(Value, Option<String>), TranslationError> {
    let attribute = |name: &str| {
        let mut attributes = csi.volume_attributes.iter();
        attributes.find(|(key, _)| key.to_lowercase() == name).map(|(_, value)| value.to_owned())
    };
    let mut share = attribute(SHARE_NAME).unwrap_or_default();
    let (mut secret, mut namespace) = match &csi.node_stage_secret_ref {
        Some(stage) if !stage.name.is_empty() => (stage.name.clone(), Some(stage.namespace.clone())),
        _ => (attribute("secretname").unwrap_or_default(), None),
    };
    namespace = namespace.or_else(|| attribute("secretnamespace"));
    let mut resource_group = None;
    if share.is_empty() || secret.is_empty() {
        let parts: Vec<&str> = csi.volume_handle.split('#').collect();
        let [group, account, share_in_handle, ..] = parts[..] else {
            return Err(TranslationError::AzureFileHandle(csi.volume_handle.clone()));
        };
        if share.is_empty() {
            share_in_handle.clone_into(&mut share);
        }
        if secret.is_empty() {
            secret = format!("{SECRET_PREFIX}{account}{SECRET_SUFFIX}");
        }
        resource_group = Some(group.to_owned()).filter(|group| !group.is_empty());
    }
    let mut source = json!({
        "secretName": secret,
        "shareName": share,
        "secretNamespace": namespace.unwrap_or_else(|| "default".to_owned()),
    });
    if csi.read_only {
        source["readOnly"] = json!(true);
    }
    Ok((source, resource_group))
}

/// The storage account and the share; all of a handle that has another form.
pub(super) fn share_of(handle: &str) -> Cow<'_, str> {
    match handle.split('#').collect::<Vec<_>>()[..] {
        [_, account, share, ..] => format!("{account}#{share}").to_lowercase().into(),
        _ => handle.into(),
    }
}

fn storage_account(secret_name: &str) -> Option<&str> {
    let (_, rest) = secret_name.split_once(SECRET_PREFIX)?;
    rest.rsplit_once(SECRET_SUFFIX).map(|(account, _)| account).filter(|account| !account.is_empty())
}
