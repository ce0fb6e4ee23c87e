//! Questions to the driver and to the server. None of them changes anything.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::sleep;
use tonic::Status;
use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_csi::v1;
use wharf_model::Event;
use wharf_model::names::reason;

use super::decide::{GAP, Pages};
use super::memory::Past;
use super::view::{Asks, Report};
use crate::driver::Driver;

/// What the driver says of all it lists, by handle; or an error: of half a list nothing follows.
pub(super) async fn list(
    driver: &Driver,
    asks: Asks,
    timeout: Duration,
) -> Result<HashMap<String, Report>, Status> {
    let mut reports = HashMap::new();
    let mut token = String::new();
    let mut pages = Pages::default();
    loop {
        // Each page has its own time, or a long list would never end.
        let (page, next) = match asks {
            Asks::ListHealth | Asks::GetHealth => list_health(driver, token.clone(), timeout).await?,
            Asks::ListConditions | Asks::GetConditions => {
                list_conditions(driver, token.clone(), timeout).await?
            }
        };
        reports.extend(page);
        let after = pages.after(next).map_err(|why| Status::internal(format!("{} {why}", asks.method())))?;
        let Some(next) = after else { return Ok(reports) };
        token = next;
        // Pages are questions, too.
        sleep(GAP).await;
    }
}

type Page = (Vec<(String, Report)>, String);

async fn list_health(driver: &Driver, starting_token: String, timeout: Duration) -> Result<Page, Status> {
    let request = v1::ControllerListVolumeHealthRequest { starting_token, ..Default::default() };
    let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
        client.controller_list_volume_health(request).await
    };
    let page = driver.controller(Asks::ListHealth.method(), timeout, call).await?;
    let reports = page.entries.into_iter().map(|health| {
        let report = Report::of_health(&health);
        (health.volume_id, report)
    });
    Ok((reports.collect(), page.next_token))
}

async fn list_conditions(driver: &Driver, starting_token: String, timeout: Duration) -> Result<Page, Status> {
    let request = v1::ListVolumesRequest { starting_token, ..Default::default() };
    let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
        client.list_volumes(request).await
    };
    let page = driver.controller(Asks::ListConditions.method(), timeout, call).await?;
    let reports = page.entries.into_iter().filter_map(|entry| {
        let condition = entry.status.and_then(|status| status.volume_condition);
        Some((entry.volume?.volume_id, Report::of_condition(condition)))
    });
    Ok((reports.collect(), page.next_token))
}

/// What the driver says of one volume.
pub(super) async fn get(
    driver: &Driver,
    asks: Asks,
    volume_id: String,
    timeout: Duration,
) -> Result<Report, Status> {
    match asks {
        Asks::ListHealth | Asks::GetHealth => {
            let request = v1::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
            let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
                client.controller_get_volume_health(request).await
            };
            let answer = driver.controller(Asks::GetHealth.method(), timeout, call).await?;
            Ok(answer.volume_health.as_ref().map_or(Report::Healthy, Report::of_health))
        }
        Asks::ListConditions | Asks::GetConditions => {
            let request = v1::ControllerGetVolumeRequest { volume_id };
            let call = |mut client: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
                client.controller_get_volume(request).await
            };
            let answer = driver.controller(Asks::GetConditions.method(), timeout, call).await?;
            Ok(Report::of_condition(answer.status.and_then(|status| status.volume_condition)))
        }
    }
}

/// What was told of claims before we started: one list for each reason, in pages, of the whole cluster. The server
/// picks; there are as many as volumes were ill within the life of an event.
pub(super) async fn past(cluster: &Cluster, nodes: bool) -> Result<Past, ApiError> {
    let told = async |reason: &str| -> Result<Vec<Event>, ApiError> {
        let selector = format!("involvedObject.kind=PersistentVolumeClaim,reason={reason}");
        let options = WatchOptions { field_selector: Some(selector), ..WatchOptions::default() };
        Ok(cluster.list::<Event>(&options).await?.items)
    };
    let mut past = Past {
        abnormal: told(reason::VOLUME_CONDITION_ABNORMAL).await?,
        normal: told(reason::VOLUME_CONDITION_NORMAL).await?,
        ..Past::default()
    };
    if nodes {
        past.failed = told(reason::NODE_FAILED).await?;
        past.recovered = told(reason::NODE_RECOVERED).await?;
    }
    Ok(past)
}
