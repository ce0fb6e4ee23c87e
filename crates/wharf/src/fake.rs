//! `wharf fake …`: runs a fake of a cloud's API until a stop signal.

mod digitalocean;

use clap::{Args, Subcommand};

/// Run a fake of a cloud's API, for tests
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
