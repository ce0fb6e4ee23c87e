//! Questions with an answer, which are not kept, and bindings.

use super::{BASE, Kind};

/// Puts a pod on a node.
pub(super) static BINDING: Kind = Kind {
    kind: "Binding",
    plural: "bindings",
    singular: "binding",
    namespaced: true,
    verbs: &["create"],
    ..BASE
};

/// Who am I?
pub(super) static SELF_SUBJECT_REVIEW: Kind = Kind {
    group: "authentication.k8s.io",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    verbs: &["create"],
    ..BASE
};

/// Whose token is this?
pub(super) static TOKEN_REVIEW: Kind = Kind {
    group: "authentication.k8s.io",
    kind: "TokenReview",
    plural: "tokenreviews",
    singular: "tokenreview",
    verbs: &["create"],
    ..BASE
};

/// May they, in this namespace?
pub(super) static LOCAL_SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "LocalSubjectAccessReview",
    plural: "localsubjectaccessreviews",
    singular: "localsubjectaccessreview",
    namespaced: true,
    verbs: &["create"],
    ..BASE
};

/// May I?
pub(super) static SELF_SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    verbs: &["create"],
    ..BASE
};

/// What may I?
pub(super) static SELF_SUBJECT_RULES_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    verbs: &["create"],
    ..BASE
};

/// May they?
pub(super) static SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    singular: "subjectaccessreview",
    verbs: &["create"],
    ..BASE
};
