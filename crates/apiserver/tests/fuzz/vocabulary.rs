//! Paths, parameters, fields and values for random requests.

pub(crate) const COLLECTIONS: &[&str] = &[
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/serviceaccounts",
    "/api/v1/persistentvolumes",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/apis/storage.k8s.io/v1/volumeattributesclasses",
    "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots",
    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents",
    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
    "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
];
pub(crate) const SUBRESOURCES: &[&str] =
    &["", "", "", "", "/status", "/binding", "/eviction", "/token", "/finalize", "/log", "/exec", "/scale"];
pub(crate) const OTHER_PATHS: &[&str] = &[
    "/",
    "/api",
    "/apis",
    "/apis/storage.k8s.io",
    "/api/v1",
    "/version",
    "/healthz",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openapi/v2",
    "/.well-known/openid-configuration",
    "/apis/storage.k8s.io/v1beta1/csinodes",
    "/api/v1/watch/pods",
];
pub(crate) const CONTENT_TYPES: &[&str] = &[
    "application/json",
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
    "text/plain; charset=\"",
];
pub(crate) const ACCEPT: &[&str] = &[
    "*/*",
    "application/json",
    "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    "application/vnd.kubernetes.protobuf",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    ";;;=,,q=2",
];
pub(crate) const PARAMETERS: &[&str] = &[
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "timeoutSeconds",
    "dryRun",
    "fieldValidation",
    "fieldManager",
    "pretty",
    "propagationPolicy",
    "gracePeriodSeconds",
    "orphanDependents",
    "includeObject",
];
pub(crate) const VALUES: &[&str] = &[
    "",
    "true",
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "18446744073709551616",
    "All",
    "Strict",
    "Exact",
    "NotOlderThan",
    "Background",
    "Foreground",
    "a=b",
    "a in (b,c),!d",
    "a notin (",
    "a==b,c!=d,e>1,f<x",
    "spec.nodeName=n1",
    "metadata.name=a",
    "metadata.name!=a,status.phase=\\,",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4ifQ",
    "%00%ff",
];
/// Field names in objects and patches.
pub(crate) const FIELDS: &str = "\
    kind apiVersion metadata name generateName namespace uid resourceVersion generation labels \
    annotations finalizers ownerReferences deletionTimestamp controller spec status data stringData \
    binaryData immutable type containers initContainers image env envFrom ports resources limits \
    requests storage volumes volumeMounts volumeDevices mountPath persistentVolumeClaim claimName \
    ephemeral emptyDir hostPath secret projected sources csi driver volumeHandle accessModes capacity \
    storageClassName volumeName volumeMode dataSource dataSourceRef claimRef nodeAffinity required \
    nodeSelectorTerms matchExpressions matchLabels key operator values selector reclaimPolicy \
    persistentVolumeReclaimPolicy provisioner parameters allowedTopologies mountOptions tolerations \
    affinity topologySpreadConstraints schedulingGates nodeName conditions phase drivers nodeID \
    allocatable count topologyKeys attacher source persistentVolumeName inlineVolumeSpec holderIdentity \
    renewTime leaseDurationSeconds involvedObject reason message firstTimestamp eventTime series \
    deletionPolicy volumeSnapshotRef snapshotHandle resourceAttributes token audiences boundObjectRef \
    $patch $retainKeys $setElementOrder/containers $deleteFromPrimitiveList/finalizers op path from \
    value add securityContext terminationMessagePath livenessProbe exec command httpGet port items \
    lastTransitionTime deletionGracePeriodSeconds";
pub(crate) const TEXTS: &[&str] = &[
    "",
    "a",
    "default",
    "v1",
    "1Gi",
    "-1",
    "1e99",
    "0.1",
    "1.5Gi",
    "2020-01-01T00:00:00Z",
    "2020-13-01T00:00:00.5+99:99",
    "ReadWriteOnce",
    "Filesystem",
    "Block",
    "Always",
    "In",
    "Exists",
    "kubernetes.io/pvc-protection",
    "delete",
    "replace",
    "/spec/a",
    "/metadata/labels/-",
    "YQ==",
    "not base64",
    "a/b/c",
    "..",
    "~",
    "\u{0}",
    "ü\u{1F600}",
    "n1",
    "Delete",
    "Retain",
];
