//! Read-only methods: lists, single volumes, capacity, health. They take no locks: a concurrent operation does not block
//! them.

use tonic::Status;
use wharf_csi::v1;
use wharf_csi::v1::controller_service_capability::rpc::Type;

use super::volumes::get_existing;
use super::{ControllerService, declared};
use crate::backend::{AvailableCapacity, CapacityQuery, GetVolume, GetVolumeHealth, ListVolumes, Volume};
use crate::paging::{self, Paging};
use crate::{validate, wire};

impl ControllerService {
    pub(super) async fn list_volumes(
        &self,
        request: v1::ListVolumesRequest,
    ) -> Result<v1::ListVolumesResponse, Status> {
        use v1::list_volumes_response::{Entry, VolumeStatus};

        let listing = declared(&self.listing, Type::ListVolumes)?;
        let paging = Paging::parse(self.rules, request.max_entries, &request.starting_token)?;
        let page = listing.list(&ListVolumes::new(paging.max).after(paging.after)).await?;
        let status = |volume: &Volume| {
            let published_node_ids = volume.published_nodes.clone();
            self.publishing.is_some().then_some(VolumeStatus { published_node_ids, volume_condition: None })
        };
        let entries = page
            .entries
            .iter()
            .map(|volume| Entry { volume: Some(wire::volume(volume)), status: status(volume) });
        Ok(v1::ListVolumesResponse {
            entries: entries.collect(),
            next_token: paging::next_token(&page, |volume| &volume.id),
        })
    }

    pub(super) async fn controller_get_volume(
        &self,
        request: v1::ControllerGetVolumeRequest,
    ) -> Result<v1::ControllerGetVolumeResponse, Status> {
        use v1::controller_get_volume_response::VolumeStatus;

        declared(&self.listing, Type::GetVolume)?;
        self.rules.id("volume_id", &request.volume_id)?;
        let volume = get_existing(&*self.volumes, &GetVolume::new(request.volume_id)).await?;
        Ok(v1::ControllerGetVolumeResponse {
            volume: Some(wire::volume(&volume)),
            // CSI requires a status here.
            status: Some(VolumeStatus { published_node_ids: volume.published_nodes, volume_condition: None }),
        })
    }

    pub(super) async fn get_capacity(
        &self,
        request: v1::GetCapacityRequest,
    ) -> Result<v1::GetCapacityResponse, Status> {
        let capacity = declared(&self.capacity, Type::GetCapacity)?;
        validate::map("parameters", &request.parameters)?;
        let capabilities = self.rules.any_capabilities(&request.volume_capabilities)?;
        let topology = match &request.accessible_topology {
            Some(topology) => Some(validate::topology("accessible_topology", topology)?),
            None => None,
        };
        if let Some(reason) = self.volumes.refuses_parameters(&validate::own_parameters(&request.parameters))
        {
            return Err(Status::invalid_argument(reason));
        }
        // A volume that cannot be created has no capacity anywhere; that is a result and not an error.
        let impossible =
            capabilities.iter().any(|capability| self.volumes.refuses(None, capability).is_some());
        let available = match impossible {
            true => AvailableCapacity::default(),
            false => {
                let query =
                    CapacityQuery::new(request.parameters).capabilities(capabilities).topology(topology);
                capacity.capacity(&query).await?
            }
        };
        Ok(v1::GetCapacityResponse {
            available_capacity: wire::bytes(available.available),
            maximum_volume_size: available.maximum_volume.map(wire::bytes),
            minimum_volume_size: available.minimum_volume.map(wire::bytes),
        })
    }

    pub(super) async fn controller_get_volume_health(
        &self,
        request: v1::ControllerGetVolumeHealthRequest,
    ) -> Result<v1::ControllerGetVolumeHealthResponse, Status> {
        let health = declared(&self.health, Type::GetVolumeHealth)?;
        self.rules.id("volume_id", &request.volume_id)?;
        let get = GetVolumeHealth::new(request.volume_id).secrets(request.secrets);
        let issues = health.volume_health(&get).await?;
        let id = &get.id;
        let issues = issues.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        Ok(v1::ControllerGetVolumeHealthResponse { volume_health: Some(wire::health(id, &issues)) })
    }

    /// Returns only volumes with issues, as CSI requires, so it reads the list until a page is full.
    pub(super) async fn controller_list_volume_health(
        &self,
        request: v1::ControllerListVolumeHealthRequest,
    ) -> Result<v1::ControllerListVolumeHealthResponse, Status> {
        let health = declared(&self.health, Type::ListVolumeHealth)?;
        let listing = declared(&self.listing, Type::ListVolumeHealth)?;
        let Paging { mut after, max } =
            Paging::parse(self.rules, request.max_entries, &request.starting_token)?;
        let mut entries: Vec<v1::VolumeHealth> = Vec::new();
        loop {
            let page = listing.list(&ListVolumes::new(max).after(after)).await?;
            for volume in &page.entries {
                // `None`: deleted since the list was read.
                let get = GetVolumeHealth::new(volume.id.clone()).secrets(request.secrets.clone());
                let issues = health.volume_health(&get).await?.unwrap_or_default();
                if issues.is_empty() {
                    continue;
                }
                if entries.len() == max {
                    let next_token =
                        entries.last().map(|last| paging::token(&last.volume_id)).unwrap_or_default();
                    return Ok(v1::ControllerListVolumeHealthResponse { entries, next_token });
                }
                entries.push(wire::health(&volume.id, &issues));
            }
            match page.entries.last() {
                Some(last) if page.more => after = Some(last.id.clone()),
                _ => {
                    return Ok(v1::ControllerListVolumeHealthResponse { entries, next_token: String::new() });
                }
            }
        }
    }
}
