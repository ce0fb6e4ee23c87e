//! Parameters of classes, volume contexts and secrets.
