//! Consistency check: compares the whole pool with its records, for `wharf local check` and the log at startup.
//! Only `adopt` changes anything.

use std::path::Path;

use serde::Serialize;
use wharf_linux::LoopDevice;

use super::PoolCore;
use super::devices::image_problem;
use crate::record::{GroupState, Phase, SnapshotRecord, VolumeRecord};
use crate::store;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Resolves itself.
    Info,
    /// Needs an operator's attention.
    Warning,
    /// An object cannot be used.
    Error,
}

/// One inconsistency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The id or path of the affected object.
    pub object: String,
    /// What is wrong.
    pub problem: String,
    /// How to fix it.
    pub remedy: String,
}

impl PoolCore {
    /// Compares every image with its record.
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = self.load_findings.clone();
        self.check_pool(&mut findings);
        let volumes: Vec<VolumeRecord> = self.index().volumes().cloned().collect();
        for record in &volumes {
            self.check_image(&record.id, record.state, record.image_inode, record.size, &mut findings);
            self.check_volume(record, &mut findings);
        }
        let snapshots: Vec<SnapshotRecord> = self.index().snapshots().cloned().collect();
        for record in &snapshots {
            self.check_image(&record.id, record.state, record.image_inode, record.size, &mut findings);
            let group = record.group.as_ref().filter(|group| self.index().group(group).is_none());
            if let Some(group) = group {
                let problem = format!("belongs to group {group}, which does not exist");
                findings.push(warning(&record.id, problem, "put the group's record back from a backup"));
            }
        }
        self.check_groups(&mut findings);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    fn check_pool(&self, findings: &mut Vec<Finding>) {
        for (id, reason) in self.index().all_broken() {
            findings.push(error(
                id,
                reason.clone(),
                "follow the message; until then the driver neither uses nor deletes it",
            ));
        }
        match self.storage_health() {
            Ok(issues) => {
                findings.extend(
                    issues
                        .into_iter()
                        .map(|issue| warning("pool", issue.message, "see the end of the message")),
                );
            }
            Err(problem) => findings.push(error("pool", problem.to_string(), "check the pool's file system")),
        }
        if let Ok(Some(_)) = self.store.stat(Path::new(store::FREEZE)) {
            findings.push(info(
                store::FREEZE,
                "a snapshot is in progress, or the driver crashed during one".into(),
                "starting the driver thaws what is still frozen",
            ));
        }
        if let Ok(names) = self.store.list(Path::new(store::TRASH))
            && !names.is_empty()
        {
            let problem = format!("{} deleted volumes or snapshots are not purged yet", names.len());
            findings.push(info(store::TRASH, problem, "the driver purges them; or run wharf local purge"));
        }
    }

    fn check_image(
        &self,
        id: &str,
        state: Phase,
        inode: Option<u64>,
        size: u64,
        findings: &mut Vec<Finding>,
    ) {
        if state == Phase::Creating {
            let problem = "is being created, or its creation was interrupted".into();
            return findings.push(info(id, problem, "starting the driver undoes an interrupted creation"));
        }
        let path = store::image_of(id);
        match self.store.stat(&path) {
            Ok(stat) => {
                if let Some(fault) = image_problem(stat, inode, size) {
                    let message = fault.message(&self.store.root.join(&path), size);
                    findings.push(error(id, message, "see the message; until then it cannot be staged"));
                }
            }
            Err(failure) => findings.push(error(id, failure.to_string(), "check the pool's file system")),
        }
        if let Phase::Copying { .. } = state {
            findings.push(info(id, self.progress(id), "the driver finishes it"));
        }
    }

    fn check_volume(&self, record: &VolumeRecord, findings: &mut Vec<Finding>) {
        if let Some(wanted) = record.growing_to {
            let problem = format!("is being expanded to {wanted} bytes, or the expansion was interrupted");
            findings.push(info(&record.id, problem, "starting the driver finishes it"));
        }
        // One device for writers and one for readers.
        let has_surplus = |loops: &[LoopDevice]| {
            let readers = loops.iter().filter(|device| device.read_only).count();
            readers > 1 || loops.len() - readers > 1
        };
        match self.loop_devices_of(record) {
            Ok(loops) if has_surplus(&loops) => {
                let names: Vec<_> = loops.iter().map(|device| device.path.display().to_string()).collect();
                let problem = format!("is attached more than once: {}", names.join(", "));
                findings.push(warning(
                    &record.id,
                    problem,
                    "unstage it, then detach the remaining devices with losetup -d",
                ));
            }
            Ok(_) => {}
            Err(failure) => findings.push(error(&record.id, failure.to_string(), "check the loop devices")),
        }
    }

    fn check_groups(&self, findings: &mut Vec<Finding>) {
        let index = self.index();
        for group in index.groups() {
            if group.state != GroupState::Ready {
                let problem = "is being created or deleted, or that was interrupted".into();
                findings.push(info(&group.id, problem, "starting the driver undoes or finishes it"));
                continue;
            }
            for member in group.members.iter().filter(|member| index.snapshot(&member.snapshot).is_none()) {
                let problem = format!("has lost its member {}", member.snapshot);
                findings.push(error(&group.id, problem, "delete the group snapshot"));
            }
        }
    }

    /// See [`super::Maintenance::adopt`].
    pub(super) fn adopt(&self, id: &str) -> Result<(), String> {
        let volume = self.index().volume(id).cloned();
        let snapshot = self.index().snapshot(id).cloned();
        let size = match (&volume, &snapshot) {
            (Some(record), _) => record.size,
            (_, Some(record)) => record.size,
            (None, None) => return Err(format!("there is no volume or snapshot {id}")),
        };
        let stat = self.store.stat(&store::image_of(id)).map_err(|error| error.to_string())?;
        let stat = stat.filter(|stat| !stat.is_dir).ok_or_else(|| format!("{id} has no image to adopt"))?;
        if stat.size != size {
            return Err(format!("{id}: its image has {} bytes, but its record says {size}", stat.size));
        }
        let image_inode = Some(stat.id.inode);
        if let Some(record) = volume {
            let loops = self.loop_devices_of(&record).map_err(|fault| fault.to_string())?;
            if let Some(device) = loops.first() {
                return Err(format!("{id} is in use as {}: unstage it first", device.path.display()));
            }
            // What the record says about the content of the old image does not apply to this one.
            let adopted = VolumeRecord { image_inode, growing_offline: false, ..record };
            self.save_volume(adopted).map_err(|fault| fault.to_string())?;
        } else if let Some(record) = snapshot {
            self.save_snapshot(SnapshotRecord { image_inode, ..record })
                .map_err(|fault| fault.to_string())?;
        }
        Ok(())
    }
}

fn info(object: &str, problem: String, remedy: &str) -> Finding {
    Finding { severity: Severity::Info, object: object.into(), problem, remedy: remedy.into() }
}

fn warning(object: &str, problem: String, remedy: &str) -> Finding {
    Finding { severity: Severity::Warning, ..info(object, problem, remedy) }
}

fn error(object: &str, problem: String, remedy: &str) -> Finding {
    Finding { severity: Severity::Error, ..info(object, problem, remedy) }
}
