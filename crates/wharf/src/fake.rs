//! `wharf fake …`: run the double of a cloud until it is told to stop.

mod digitalocean;

use clap::{Args, Subcommand};

/// Run a double of a cloud's API, to test against
#[derive(Debug, Args)]
pub(crate) struct FakeArgs {
    #[command(subcommand)]
    fake: Fake,
}

#[derive(Debug, Subcommand)]
enum Fake {
    #[command(name = "digitalocean")]
    DigitalOcean(Box<digitalocean::Args>),
}

pub(crate) async fn run(args: FakeArgs) -> anyhow::Result<()> {
    match args.fake {
        Fake::DigitalOcean(args) => digitalocean::run(*args).await,
    }
}
