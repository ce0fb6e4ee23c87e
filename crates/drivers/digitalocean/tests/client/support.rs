//! A fake API, a client for it, and request counting.

use std::time::Duration;

use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::api::{NewVolume, Volume};
use wharf_driver_digitalocean::{Attachments, Client, ClientOptions, Token};
use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions, Fault, FaultEffect};

pub(crate) const REGION: &str = "nyc3";
pub(crate) const TOKEN: &str = "dop_v1_secret";

/// More than ten times faster than the real API.
pub(crate) const POLLING: PollingOptions = PollingOptions {
    timeout: Duration::from_secs(20),
    initial_interval: Duration::from_millis(50),
    max_interval: Duration::from_millis(250),
};

pub(crate) struct Bench {
    pub(crate) fake: FakeDigitalOcean,
    pub(crate) client: Client,
    pub(crate) attachments: Attachments,
}

/// No limits except those that a test sets, fast actions, droplets 1 to 5.
pub(crate) fn options() -> FakeOptions {
    let options = (1..=5).fold(FakeOptions::new().token(TOKEN), |options, id| options.droplet(id, REGION));
    options.settings(|settings| {
        settings.action_delay_ms = 100;
        settings.requests_per_minute = 0;
        settings.requests_per_hour = 0;
        settings.volume_limit = 0;
        settings.snapshot_interval_ms = 0;
    })
}

pub(crate) fn client_options(url: String) -> ClientOptions {
    let mut options = ClientOptions::new(url, Token::fixed(TOKEN).unwrap());
    options.requests_per_minute = 100_000;
    options.timeout = Duration::from_secs(10);
    options
}

pub(crate) async fn bench() -> Bench {
    bench_with(options(), |_| {}, POLLING).await
}

pub(crate) async fn bench_with(
    options: FakeOptions,
    change: impl FnOnce(&mut ClientOptions),
    polling: PollingOptions,
) -> Bench {
    let fake = FakeDigitalOcean::start(options).await.unwrap();
    let mut wanted = client_options(fake.url());
    change(&mut wanted);
    let client = Client::new(wanted).unwrap();
    let attachments = Attachments::new(client.clone(), REGION, polling);
    Bench { fake, client, attachments }
}

pub(crate) fn new_volume(name: &str) -> NewVolume {
    NewVolume { name: name.into(), region: REGION.into(), size_gigabytes: 10, ..NewVolume::default() }
}

impl Bench {
    /// Creates a volume and clears the request log.
    pub(crate) async fn volume(&self, name: &str) -> Volume {
        let volume = self.client.create_volume(&new_volume(name)).await.unwrap();
        self.fake.forget_requests();
        volume
    }

    /// Creates an attached volume and clears the request log.
    pub(crate) async fn attached(&self, name: &str, droplet: u64) -> Volume {
        let volume = self.volume(name).await;
        let volume = self.attachments.attach(&volume.id, droplet).await.unwrap();
        self.fake.forget_requests();
        volume
    }

    pub(crate) fn fault(&self, what: FaultEffect, method: &str, path: &str, times: u64) {
        self.fake.add_fault(Fault::new(what).at(method, path).times(times));
    }

    /// `POST`, or `POST attach` for an action.
    pub(crate) fn seen(&self) -> Vec<String> {
        let word = |method: String, action: Option<String>| match action {
            Some(action) => format!("{method} {action}"),
            None => method,
        };
        self.fake.requests().into_iter().map(|request| word(request.method, request.action)).collect()
    }

    /// The number of requests with this method and, if given, this action.
    pub(crate) fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }

    pub(crate) fn refusals(&self) -> Vec<u16> {
        self.fake.requests().iter().filter_map(|request| request.status).filter(|code| *code >= 400).collect()
    }

    /// The droplet that a volume is attached to in the fake.
    pub(crate) fn attached_to(&self, volume: &str) -> Option<u64> {
        self.fake.state().volumes[volume].attached.map(|attached| attached.droplet)
    }
}
