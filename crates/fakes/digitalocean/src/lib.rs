//! A double of DigitalOcean's API and metadata service, for whoever tests against them.
