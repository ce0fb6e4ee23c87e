//! CreateVolume: decides what to do, given the volumes that the API has under the name. Pure.

use wharf_driver::backend::{NewVolume, Topology, VolumeContentSource};

use crate::api::Volume;
use crate::names::{DESCRIPTION, REGION_KEY};
use crate::size::{self, SizeError, bytes};

/// What CreateVolume does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// No volume exists: create it.
    Create,
    /// A matching volume exists: an earlier call created it.
    UseExisting,
    /// An earlier call restored it, but did not resize it: resize it to this many GiB.
    Grow(u64),
    /// The existing driver created it with its size rounded down: resize it to this many GiB.
    RoundUp(u64),
    /// A volume exists, but does not match the request.
    Differs(String),
    /// The name is not unique, contrary to the API's guarantee.
    Duplicate(usize),
}

/// Decides what to do, given the volumes `found` under the name.
pub(super) fn plan(found: &[Volume], wanted: &NewVolume) -> Result<Plan, SizeError> {
    let volume = match found {
        [] => return Ok(Plan::Create),
        [volume] => volume,
        several => return Ok(Plan::Duplicate(several.len())),
    };
    let has = bytes(volume.size_gigabytes);
    if wanted.size.fits(has) {
        return Ok(Plan::UseExisting);
    }
    // A restored volume starts with its snapshot's size. Any other volume is created with the requested size.
    if matches!(wanted.source, Some(VolumeContentSource::Snapshot(_))) && has < wanted.size.required {
        return Ok(Plan::Grow(size::choose(wanted.size, volume.size_gigabytes)?));
    }
    if has == size::rounded_down(wanted.size.required)
        && is_unused(volume)
        && let Ok(gib) = size::choose(wanted.size, volume.size_gigabytes)
    {
        return Ok(Plan::RoundUp(gib));
    }
    Ok(Plan::Differs(format!(
        "volume {:?} already exists with {} GiB (id {}), which does not match the request",
        wanted.name, volume.size_gigabytes, volume.id
    )))
}

/// Whether a volume was created by this driver and is not attached.
pub(super) fn is_unused(volume: &Volume) -> bool {
    volume.droplet_ids.is_empty() && volume.description == DESCRIPTION
}

/// Whether a volume in this region satisfies one of the topology terms. A term without a region matches any region.
pub(super) fn is_reachable(region: &str, requisite: &[Topology]) -> bool {
    requisite.is_empty()
        || requisite.iter().any(|term| term.get(REGION_KEY).is_none_or(|requested| requested == region))
}

#[cfg(test)]
mod tests {
    use wharf_driver::backend::SizeRange;

    use super::*;
    use crate::api::Region;
    use crate::names::topology_of;
    use crate::size::GIB;

    fn volume(gib: u64) -> Volume {
        Volume {
            id: "id".into(),
            name: "pvc-1".into(),
            region: Region { slug: "nyc3".into() },
            droplet_ids: vec![],
            size_gigabytes: gib,
            description: String::new(),
            created_at: String::new(),
            filesystem_type: String::new(),
            tags: vec![],
        }
    }

    fn wanted(required: u64, limit: Option<u64>, restores: bool) -> NewVolume {
        NewVolume::new("pvc-1", vec![])
            .size(SizeRange { required, limit })
            .source(restores.then(|| VolumeContentSource::Snapshot("s".into())))
    }

    #[test]
    fn plan_depends_on_existing_volume_and_request() {
        let word = |found: &[Volume], wanted: NewVolume| match plan(found, &wanted) {
            Ok(Plan::Create) => "make".to_owned(),
            Ok(Plan::UseExisting) => "take".into(),
            Ok(Plan::Grow(gib)) => format!("grow {gib}"),
            Ok(Plan::RoundUp(gib)) => format!("round up {gib}"),
            Ok(Plan::Differs(_)) => "differs".into(),
            Ok(Plan::Duplicate(_)) => "doubled".into(),
            Err(_) => "out of range".into(),
        };
        let ours = |gib| Volume { description: DESCRIPTION.to_owned(), ..volume(gib) };
        let attached = |gib| Volume { droplet_ids: vec![7], ..ours(gib) };
        for (found, wanted, expected) in [
            (&[][..], wanted(GIB, None, false), "make"),
            (&[], wanted(GIB, None, true), "make"),
            (&[volume(1)], wanted(GIB, None, false), "take"),
            // The second call finds what the first one created.
            (&[volume(2)], wanted(3 * GIB / 2, None, false), "take"),
            (&[volume(16)], wanted(0, None, false), "take"),
            (&[volume(1)], wanted(2 * GIB, None, false), "differs"),
            (&[volume(2)], wanted(GIB, Some(GIB), false), "differs"),
            (&[volume(1)], wanted(5 * GIB / 2, None, true), "grow 3"),
            (&[volume(3)], wanted(5 * GIB / 2, None, true), "take"),
            (&[volume(4)], wanted(GIB, Some(2 * GIB), true), "differs"),
            (&[volume(1)], wanted(5 * GIB / 2, Some(5 * GIB / 2), true), "out of range"),
            (&[volume(1), volume(1)], wanted(GIB, None, false), "doubled"),
            // Created by the existing driver before it crashed.
            (&[ours(2)], wanted(5 * GIB / 2, None, false), "round up 3"),
            (&[ours(2)], wanted(5 * GIB / 2, Some(5 * GIB / 2), false), "differs"),
            (&[ours(1)], wanted(5 * GIB / 2, None, false), "differs"),
            (&[volume(2)], wanted(5 * GIB / 2, None, false), "differs"),
            (&[attached(2)], wanted(5 * GIB / 2, None, false), "differs"),
        ] {
            assert_eq!(word(found, wanted.clone()), expected, "{found:?} {wanted:?}");
        }
    }

    #[test]
    fn unused_requires_our_description_and_no_droplet() {
        for (droplets, description, expected) in
            [(vec![], DESCRIPTION, true), (vec![7], DESCRIPTION, false), (vec![], "by hand", false)]
        {
            let volume = Volume { droplet_ids: droplets, description: description.to_owned(), ..volume(1) };
            assert_eq!(is_unused(&volume), expected, "{volume:?}");
        }
    }

    #[test]
    fn topology_terms_match_region() {
        let other: Topology = [("zone".to_owned(), "a".to_owned())].into();
        for (requisite, expected) in [
            (vec![], true),
            (vec![topology_of("nyc3")], true),
            (vec![topology_of("ams3")], false),
            (vec![topology_of("ams3"), topology_of("nyc3")], true),
            (vec![other], true),
        ] {
            assert_eq!(is_reachable("nyc3", &requisite), expected, "{requisite:?}");
        }
    }
}
