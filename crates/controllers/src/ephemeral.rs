//! Makes the claims of ephemeral volumes.
