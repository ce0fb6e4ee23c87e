//! The SDK's controller traits, on top of share workers.
