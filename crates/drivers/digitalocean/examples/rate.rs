//! Attaches 100 volumes to 20 droplets in real time, on the fake API with DigitalOcean's limits and actions of
//! 10 seconds. Prints the result; the goal is 3 minutes, with no failures and no refusals.
//!
//! `cargo run --release -p wharf-driver-digitalocean --example rate`

use std::process::ExitCode;
use std::time::{Duration, Instant};

use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::api::NewVolume;
use wharf_driver_digitalocean::{Attachments, Client, ClientOptions, Token};
use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions};

const VOLUMES: u64 = 100;
const DROPLETS: u64 = 20;
const REGION: &str = "nyc3";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let options = (1..=DROPLETS).fold(FakeOptions::new(), |options, id| options.droplet(id, REGION));
    let fake = FakeDigitalOcean::start(options.settings(|settings| {
        settings.action_delay_ms = 10_000;
        settings.volume_limit = 0;
    }))
    .await?;
    let maker = Client::new(ClientOptions::new(fake.url(), Token::fixed("to-make-them")?))?;
    let mut volumes = Vec::new();
    for number in 0..VOLUMES {
        let wanted = NewVolume {
            name: format!("pvc-{number}"),
            region: REGION.to_owned(),
            size_gigabytes: 1,
            ..NewVolume::default()
        };
        volumes.push((maker.create_volume(&wanted).await?.id, number % DROPLETS + 1));
    }
    fake.forget_requests();

    // A separate token has its own rate limit.
    let client = Client::new(ClientOptions::new(fake.url(), Token::fixed("to-attach-them")?))?;
    let attachments = Attachments::new(client.clone(), REGION, PollingOptions::default());
    let started = Instant::now();
    let attach = |(id, droplet): (String, u64)| {
        let (client, attachments) = (client.clone(), attachments.clone());
        tokio::spawn(async move {
            // As ControllerPublishVolume does: get the volume first.
            let seen = client.volume(&id).await.map_err(|error| error.to_string())?;
            seen.ok_or("the volume does not exist")?;
            attachments.attach(&id, droplet).await.map_err(|error| error.to_string())?;
            Ok::<(), String>(())
        })
    };
    let tasks: Vec<_> = volumes.into_iter().map(attach).collect();
    let mut failed = 0;
    for task in tasks {
        if let Err(error) = task.await? {
            eprintln!("{error}");
            failed += 1;
        }
    }
    let took = started.elapsed();
    let requests = fake.requests();
    let refused = requests.iter().filter(|request| request.status.is_none_or(|code| code >= 400)).count();
    let minute = requests
        .iter()
        .enumerate()
        .map(|(first, request)| {
            requests[first..].iter().take_while(|later| later.at < request.at + 60_000).count()
        })
        .max()
        .unwrap_or_default();
    println!("{VOLUMES} volumes on {DROPLETS} droplets, 10 s for an action, 250 requests a minute");
    println!("took               {:.1} s (goal: 180)", took.as_secs_f64());
    println!("failed             {failed} (goal: 0)");
    println!("requests           {}, of which refused {refused}", requests.len());
    println!("busiest minute     {minute} (limit: 250)");
    let each = requests.len() as f64 / VOLUMES as f64;
    println!("requests an attach {each:.2} (the existing driver: 12 to 15)");
    fake.stop().await?;
    let good = failed == 0 && took <= Duration::from_secs(180);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
