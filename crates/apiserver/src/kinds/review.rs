//! Kinds that are not stored: reviews, which are answered directly, and bindings.

use super::{BASE, Kind};

/// Binds a pod to a node.
pub(super) static BINDING: Kind = Kind {
    kind: "Binding",
    plural: "bindings",
    singular: "binding",
    namespaced: true,
    verbs: &["create"],
    ..BASE
};

/// Returns the caller's identity.
pub(super) static SELF_SUBJECT_REVIEW: Kind = Kind {
    group: "authentication.k8s.io",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    verbs: &["create"],
    ..BASE
};

/// Authenticates a token.
pub(super) static TOKEN_REVIEW: Kind = Kind {
    group: "authentication.k8s.io",
    kind: "TokenReview",
    plural: "tokenreviews",
    singular: "tokenreview",
    verbs: &["create"],
    ..BASE
};

/// Checks whether a user may perform an action in one namespace.
pub(super) static LOCAL_SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "LocalSubjectAccessReview",
    plural: "localsubjectaccessreviews",
    singular: "localsubjectaccessreview",
    namespaced: true,
    verbs: &["create"],
    ..BASE
};

/// Checks whether the caller may perform an action.
pub(super) static SELF_SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    verbs: &["create"],
    ..BASE
};

/// Lists the actions that the caller may perform in a namespace.
pub(super) static SELF_SUBJECT_RULES_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    verbs: &["create"],
    ..BASE
};

/// Checks whether a user may perform an action.
pub(super) static SUBJECT_ACCESS_REVIEW: Kind = Kind {
    group: "authorization.k8s.io",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    singular: "subjectaccessreview",
    verbs: &["create"],
    ..BASE
};
