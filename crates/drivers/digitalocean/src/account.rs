//! Whether the API works for us: the token, the account, and its limit of volumes.
//!
//! Asked when somebody wants to know, and not more often than every minute while all is well: `/health` may be asked
//! as often as one likes. The existing driver counts the volumes of one region against a limit that is the
//! account's, and looks once only (B9).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use wharf_driver::backend::{StorageIssue, StorageStatus};

use crate::api;
use crate::client::{ApiError, Client, Kind};

/// How long an answer is good.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// And one that was not good.
const BAD_FOR: Duration = Duration::from_secs(10);
/// How long the API may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// The account behind the token; clones share what was found out.
#[derive(Clone)]
pub struct Account {
    client: Client,
    last: Arc<Mutex<Option<(Instant, Standing)>>>,
}

/// How things stand with the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Volumes can be made.
    Good,
    /// As many volumes as there may be.
    Full {
        /// How many there are, in all regions.
        volumes: u64,
        /// How many there may be.
        limit: u64,
    },
    /// `warning` or `locked`, and why.
    Restricted(String),
    /// The token is not good, or lacks a scope.
    Refused(String),
    /// The API does not answer as it should.
    Unreachable(String),
}

impl Account {
    /// Makes no request.
    pub fn new(client: Client) -> Self {
        Self { client, last: Arc::default() }
    }

    /// How things stand, found out now or not long ago. Who asks while it is being found out gets that answer.
    pub async fn check(&self) -> Standing {
        let mut last = self.last.lock().await;
        if let Some((when, standing)) = &*last
            && when.elapsed() < if *standing == Standing::Good { GOOD_FOR } else { BAD_FOR }
        {
            return standing.clone();
        }
        let asked = async {
            let account = self.client.account().await?;
            Ok((account, self.client.volume_count().await?))
        };
        let standing = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(answer) => judge(answer),
            Err(_) => Standing::Unreachable(format!("the API has not answered for {} s", PATIENCE.as_secs())),
        };
        *last = Some((Instant::now(), standing.clone()));
        standing
    }
}

fn judge(answer: Result<(api::Account, u64), ApiError>) -> Standing {
    match answer {
        Ok((account, _)) if !matches!(account.status.as_str(), "" | "active") => {
            Standing::Restricted(format!("the account is {}: {}", account.status, account.status_message))
        }
        // 0 is no limit.
        Ok((account, volumes)) if account.volume_limit > 0 && volumes >= account.volume_limit => {
            Standing::Full { volumes, limit: account.volume_limit }
        }
        Ok(_) => Standing::Good,
        Err(error) if matches!(error.kind(), Kind::Unauthorized | Kind::Forbidden) => {
            Standing::Refused(error.to_string())
        }
        Err(error) => Standing::Unreachable(error.to_string()),
    }
}

impl Standing {
    /// Why the driver cannot do its work, if it cannot. A full account can still attach and delete.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Good | Self::Full { .. } | Self::Restricted(_) => None,
            Self::Refused(why) | Self::Unreachable(why) => Some(why.clone()),
        }
    }

    /// As health has it.
    pub(crate) fn issues(&self) -> Vec<StorageIssue> {
        let issue = |status, reason: &str, message: String| {
            vec![StorageIssue { status, reason: reason.to_owned(), message }]
        };
        match self {
            Self::Good => vec![],
            Self::Full { volumes, limit } => issue(
                StorageStatus::Degraded,
                "VolumeLimit",
                format!("the account has {volumes} of {limit} volumes: no more can be made"),
            ),
            Self::Restricted(why) => issue(StorageStatus::Degraded, "AccountRestricted", why.clone()),
            Self::Refused(why) => issue(StorageStatus::Unreachable, "TokenRefused", why.clone()),
            Self::Unreachable(why) => issue(StorageStatus::Unreachable, "ApiUnreachable", why.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standings() {
        let account = |status: &str, volume_limit| api::Account {
            volume_limit,
            status: status.into(),
            status_message: "why".into(),
        };
        for (account, volumes, reason) in [
            (account("active", 0), 1000, ""),
            (account("", 100), 99, ""),
            // B9: all regions together.
            (account("active", 100), 100, "VolumeLimit"),
            (account("locked", 100), 1, "AccountRestricted"),
        ] {
            let standing = judge(Ok((account.clone(), volumes)));
            let reasons: Vec<String> = standing.issues().into_iter().map(|issue| issue.reason).collect();
            assert_eq!(reasons.join(" "), reason, "{account:?} {volumes}");
            assert_eq!(standing.trouble(), None);
        }
        assert!(Standing::Refused("why".into()).trouble().is_some());
        assert!(Standing::Unreachable("why".into()).trouble().is_some());
    }
}
