//! `fake-digitalocean` as a process: addresses, durable state and shutdown. Needs root.

#![allow(clippy::unwrap_used)] // test helpers: a panic is the intended failure

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wharf_linux::{BlockDevices as _, Linux};

struct Fake {
    child: Child,
    api: String,
    metadata: String,
}

impl Fake {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-digitalocean"))
            .args(["--listen", "127.0.0.1:0", "--metadata-listen", "127.0.0.1:0"])
            .args(["--droplet", "101:ams3", "--action-delay", "0", "--device-delay", "0"])
            .args(["--state".as_ref(), root.join("state").as_os_str()])
            .args(["--attach-real".as_ref(), root.join("by-id").as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |prefix: &str| {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix(prefix).unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let (api, metadata) = (address("api http://"), address("metadata 101 http://"));
        Self { child, api, metadata }
    }

    fn request(&self, address: &str, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer x\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    fn signal(&mut self, name: &str) -> Option<i32> {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // Still running only if the test has failed or did not stop it.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("-TERM");
        }
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn fake_resumes_after_a_kill_and_removes_devices_on_stop() {
    let root = tempfile::tempdir().unwrap();
    let link: PathBuf = root.path().join("by-id/101/scsi-0DO_Volume_data");
    let mut fake = Fake::start(root.path());
    assert!(fake.request(&fake.metadata, "GET", "/metadata/v1/region", "").ends_with("\r\n\r\nams3"));
    let body = r#"{"name":"data","region":"ams3","size_gigabytes":1}"#;
    let created = fake.request(&fake.api, "POST", "/v2/volumes", body);
    let id = created.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let body = r#"{"type":"attach","droplet_id":101}"#;
    let attached = fake.request(&fake.api, "POST", &format!("/v2/volumes/{id}/actions"), body);
    assert!(attached.starts_with("HTTP/1.1 202 "), "{attached}");
    let device = || {
        let devices = Linux::new().loop_devices().unwrap();
        devices.into_iter().find(|device| device.label == id).map(|device| device.path)
    };
    until("the device appears", || link.exists());
    let before = device();
    assert_eq!(fake.signal("-KILL"), None);
    assert_eq!((link.exists(), device()), (true, before.clone()), "the device disappeared with the process");

    let mut fake = Fake::start(root.path());
    let found = fake.request(&fake.api, "GET", &format!("/v2/volumes/{id}"), "");
    assert!(found.contains("\"droplet_ids\":[101]"), "{found}");
    assert_eq!((link.exists(), device()), (true, before), "the device was replaced");
    assert_eq!(fake.signal("-TERM"), Some(0));
    assert_eq!((link.is_symlink(), device()), (false, None));
}
