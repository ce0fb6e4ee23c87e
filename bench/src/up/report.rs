//! The results as a section of bench/RESULTS.md.

use std::fmt::Write as _;

use wharf_bench::table::{Goal, figure};

use crate::Size;
use crate::sides::Contender;

/// All results of one side: seconds, processor milliseconds, MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Results {
    pub(crate) up: f64,
    pub(crate) memory_idle: f64,
    pub(crate) single: f64,
    pub(crate) single_end: f64,
    pub(crate) many: f64,
    pub(crate) cpu: f64,
    pub(crate) memory_pods: f64,
    pub(crate) many_end: f64,
    pub(crate) volumes: f64,
    pub(crate) memory_volumes: f64,
}

pub(crate) fn section(found: &[(Contender, Results)], size: &Size) -> String {
    type Of = fn(&Results) -> f64;
    let Size { many, volumes, .. } = size;
    let rows: [(String, Of, Goal); 10] = [
        ("start until ready (s)".into(), |it| it.up, Goal::None),
        ("claim and pod, from creation until ready (s)".into(), |it| it.single, Goal::AtMost(0.3)),
        ("the same, from deletion until nothing is left (s)".into(), |it| it.single_end, Goal::None),
        (format!("{many} claims and pods, from creation until ready (s)"), |it| it.many, Goal::None),
        ("CPU time per claim and pod (ms)".into(), |it| it.cpu, Goal::None),
        ("the same, from deletion until nothing is left (s)".into(), |it| it.many_end, Goal::None),
        (format!("{volumes} claims, from creation until bound (s)"), |it| it.volumes, Goal::None),
        ("RSS, idle (MiB)".into(), |it| it.memory_idle, Goal::AtMost(40.0)),
        (format!("RSS, {many} pods (MiB)"), |it| it.memory_pods, Goal::None),
        (format!("RSS, {volumes} volumes (MiB)"), |it| it.memory_volumes, Goal::None),
    ];
    let mut text = format!(
        "## One machine\n\n\
         One run of `bench/up.sh` on {} processors. It compares three setups: Kubernetes 1.34 with one node, containerd, upstream's\n\
         hostpath driver and provisioner (attacher and registrar are Wharf's), high API limits of the controller manager, and etcd with\n\
         fsync; `wharf up` with the same driver; and `wharf up` with the local driver, which formats each volume with ext4. Claims bind\n\
         with WaitForFirstConsumer. Times of a single claim and pod are the median of {}. Memory and CPU time of Kubernetes include etcd,\n\
         kube-apiserver, controller manager, scheduler and kubelet, but not containerd, sidecars and driver. Those of `wharf up` include\n\
         its sidecar and, with the local driver, the driver.\n\n",
        std::thread::available_parallelism().map_or(1, usize::from),
        size.single,
    );
    let find =
        |contender: Contender| found.iter().find(|(whose, _)| *whose == contender).map(|(_, found)| found);
    text.push_str(
        "| measurement | Kubernetes | wharf, same driver | wharf, local driver | goal |\n|---|---|---|---|---|\n",
    );
    for (what, of, goal) in rows {
        let shown = |contender| find(contender).map_or("-".to_owned(), |found| figure(of(found)));
        let worst =
            [Contender::Wharf, Contender::Local].into_iter().filter_map(find).map(of).fold(0.0, f64::max);
        let verdict = goal.verdict(None, worst);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {what} | {} | {} | {} | {verdict} |",
            shown(Contender::Kubernetes),
            shown(Contender::Wharf),
            shown(Contender::Local),
        );
    }
    text
}
