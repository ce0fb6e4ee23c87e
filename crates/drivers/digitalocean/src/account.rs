//! The state of the account: the token, the account's status, and its volume limit.
//!
//! Checked on demand, and cached for a minute while the status is good, so that `/health` can be polled at any rate.
//! The existing driver compares the volumes of one region with the limit of the whole account, and checks only
//! once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use wharf_driver::backend::{StorageIssue, StorageStatus};

use crate::api;
use crate::client::{ApiError, ApiErrorKind, Client};

/// How long a good status is cached.
const CACHE_TTL_GOOD: Duration = Duration::from_secs(60);
/// How long any other status is cached.
const CACHE_TTL_BAD: Duration = Duration::from_secs(10);
/// Timeout of a check.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The account of the token; clones share the cached status.
#[derive(Clone)]
pub struct Account {
    client: Client,
    last: Arc<Mutex<Option<(Instant, AccountStatus)>>>,
}

/// The status of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountStatus {
    /// Volumes can be created.
    Good,
    /// The volume limit is reached.
    Full {
        /// Number of volumes in all regions.
        volumes: u64,
        /// The account's volume limit.
        limit: u64,
    },
    /// The account is `warning` or `locked`; the reason.
    Restricted(String),
    /// The token is invalid or lacks a scope.
    Refused(String),
    /// The API is unreachable or returns errors.
    Unreachable(String),
}

impl Account {
    /// Makes no request.
    pub fn new(client: Client) -> Self {
        Self { client, last: Arc::default() }
    }

    /// The account's status, possibly cached. Concurrent callers share one check.
    pub async fn check(&self) -> AccountStatus {
        let mut last = self.last.lock().await;
        if let Some((when, status)) = &*last
            && when.elapsed() < if *status == AccountStatus::Good { CACHE_TTL_GOOD } else { CACHE_TTL_BAD }
        {
            return status.clone();
        }
        let request = async {
            let account = self.client.account().await?;
            Ok((account, self.client.volume_count().await?))
        };
        let status = match tokio::time::timeout(TIMEOUT, request).await {
            Ok(response) => status_of(response),
            Err(_) => {
                AccountStatus::Unreachable(format!("the API did not respond within {} s", TIMEOUT.as_secs()))
            }
        };
        *last = Some((Instant::now(), status.clone()));
        status
    }
}

fn status_of(response: Result<(api::Account, u64), ApiError>) -> AccountStatus {
    match response {
        Ok((account, _)) if !matches!(account.status.as_str(), "" | "active") => AccountStatus::Restricted(
            format!("the account is {}: {}", account.status, account.status_message),
        ),
        // 0 means no limit.
        Ok((account, volumes)) if account.volume_limit > 0 && volumes >= account.volume_limit => {
            AccountStatus::Full { volumes, limit: account.volume_limit }
        }
        Ok(_) => AccountStatus::Good,
        Err(error) if matches!(error.kind(), ApiErrorKind::Unauthorized | ApiErrorKind::Forbidden) => {
            AccountStatus::Refused(error.to_string())
        }
        Err(error) => AccountStatus::Unreachable(error.to_string()),
    }
}

impl AccountStatus {
    /// Why the driver cannot work, if it cannot. A full account can still attach and delete volumes.
    pub fn unready_reason(&self) -> Option<String> {
        match self {
            Self::Good | Self::Full { .. } | Self::Restricted(_) => None,
            Self::Refused(reason) | Self::Unreachable(reason) => Some(reason.clone()),
        }
    }

    /// The status as health issues.
    pub(crate) fn issues(&self) -> Vec<StorageIssue> {
        let issue = |status, reason: &str, message: String| {
            vec![StorageIssue { status, reason: reason.to_owned(), message }]
        };
        match self {
            Self::Good => vec![],
            Self::Full { volumes, limit } => issue(
                StorageStatus::Degraded,
                "VolumeLimit",
                format!("the account has {volumes} of {limit} volumes: no more can be created"),
            ),
            Self::Restricted(reason) => issue(StorageStatus::Degraded, "AccountRestricted", reason.clone()),
            Self::Refused(reason) => issue(StorageStatus::Unreachable, "TokenRefused", reason.clone()),
            Self::Unreachable(reason) => issue(StorageStatus::Unreachable, "ApiUnreachable", reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_follows_account_and_volume_count() {
        let account = |status: &str, volume_limit| api::Account {
            volume_limit,
            status: status.into(),
            status_message: "reason".into(),
        };
        for (account, volumes, reason) in [
            (account("active", 0), 1000, ""),
            (account("", 100), 99, ""),
            // Volumes of all regions count.
            (account("active", 100), 100, "VolumeLimit"),
            (account("locked", 100), 1, "AccountRestricted"),
        ] {
            let status = status_of(Ok((account.clone(), volumes)));
            let reasons: Vec<String> = status.issues().into_iter().map(|issue| issue.reason).collect();
            assert_eq!(reasons.join(" "), reason, "{account:?} {volumes}");
            assert_eq!(status.unready_reason(), None);
        }
        assert!(AccountStatus::Refused("reason".into()).unready_reason().is_some());
        assert!(AccountStatus::Unreachable("reason".into()).unready_reason().is_some());
    }
}
