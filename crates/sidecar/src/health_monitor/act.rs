//! Read-only calls to the driver and the API server.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::sleep;
use tonic::Status;
use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_csi::v1;
use wharf_model::Event;
use wharf_model::names::reason;

use super::decide::MIN_INTERVAL;
use super::history::PastEvents;
use super::view::{HealthSource, Report};
use crate::driver::Driver;
use crate::list_pages::ListPages;

/// The reports on all volumes that the driver lists, by volume handle. An incomplete list is an error: nothing
/// follows from it.
pub(super) async fn list(
    driver: &Driver,
    source: HealthSource,
    timeout: Duration,
) -> Result<HashMap<String, Report>, Status> {
    let mut reports = HashMap::new();
    let mut token = String::new();
    let mut pages = ListPages::default();
    loop {
        // Each page has its own timeout, or a long list would never complete.
        let (page, next) = match source {
            HealthSource::ListHealth | HealthSource::GetHealth => {
                list_health(driver, token.clone(), timeout).await?
            }
            HealthSource::ListConditions | HealthSource::GetConditions => {
                list_conditions(driver, token.clone(), timeout).await?
            }
        };
        reports.extend(page);
        let after = pages.after(next, reports.len());
        let after = after.map_err(|error| Status::internal(format!("{} {error}", source.method())))?;
        let Some(next) = after else { return Ok(reports) };
        token = next;
        // Each page is a call, so the rate limit applies.
        sleep(MIN_INTERVAL).await;
    }
}

type HealthPage = (Vec<(String, Report)>, String);

async fn list_health(
    driver: &Driver,
    starting_token: String,
    timeout: Duration,
) -> Result<HealthPage, Status> {
    let request = v1::ControllerListVolumeHealthRequest { starting_token, ..Default::default() };
    let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
        client.controller_list_volume_health(request).await
    };
    let page = driver.controller(HealthSource::ListHealth.method(), timeout, call).await?;
    let reports = page.entries.into_iter().map(|health| {
        let report = Report::of_health(&health);
        (health.volume_id, report)
    });
    Ok((reports.collect(), page.next_token))
}

async fn list_conditions(
    driver: &Driver,
    starting_token: String,
    timeout: Duration,
) -> Result<HealthPage, Status> {
    let request = v1::ListVolumesRequest { starting_token, ..Default::default() };
    let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
        client.list_volumes(request).await
    };
    let page = driver.controller(HealthSource::ListConditions.method(), timeout, call).await?;
    let reports = page.entries.into_iter().filter_map(|entry| {
        let condition = entry.status.and_then(|status| status.volume_condition);
        Some((entry.volume?.volume_id, Report::of_condition(condition)))
    });
    Ok((reports.collect(), page.next_token))
}

/// The report on one volume.
pub(super) async fn get(
    driver: &Driver,
    source: HealthSource,
    volume_id: String,
    timeout: Duration,
) -> Result<Report, Status> {
    match source {
        HealthSource::ListHealth | HealthSource::GetHealth => {
            let request = v1::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
            let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
                client.controller_get_volume_health(request).await
            };
            let response = driver.controller(HealthSource::GetHealth.method(), timeout, call).await?;
            Ok(response.volume_health.as_ref().map_or(Report::Healthy, Report::of_health))
        }
        HealthSource::ListConditions | HealthSource::GetConditions => {
            let request = v1::ControllerGetVolumeRequest { volume_id };
            let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
                client.controller_get_volume(request).await
            };
            let response = driver.controller(HealthSource::GetConditions.method(), timeout, call).await?;
            Ok(Report::of_condition(response.status.and_then(|status| status.volume_condition)))
        }
    }
}

/// The events recorded on claims before this start: one paged list per reason, of the whole cluster. The server
/// filters; there are as many as volumes became abnormal during the lifetime of an event.
pub(super) async fn past_events(cluster: &Cluster, nodes: bool) -> Result<PastEvents, ApiError> {
    let reported = async |reason: &str| -> Result<Vec<Event>, ApiError> {
        let selector = format!("involvedObject.kind=PersistentVolumeClaim,reason={reason}");
        let options = WatchOptions { field_selector: Some(selector), ..WatchOptions::default() };
        Ok(cluster.list::<Event>(&options).await?.items)
    };
    let mut past = PastEvents {
        abnormal: reported(reason::VOLUME_CONDITION_ABNORMAL).await?,
        normal: reported(reason::VOLUME_CONDITION_NORMAL).await?,
        ..PastEvents::default()
    };
    if nodes {
        past.failed = reported(reason::NODE_FAILED).await?;
        past.recovered = reported(reason::NODE_RECOVERED).await?;
    }
    Ok(past)
}
