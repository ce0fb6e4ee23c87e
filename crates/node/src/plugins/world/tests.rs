//! Sockets that appear, disappear and compete for driver names.

use std::cell::RefCell;
use std::fs::File;

use wharf_csi::registration::PluginInfo;

use super::*;
use crate::plugins::validate::validate;
use crate::plugins::view::Entries;

/// Regular files instead of sockets: only the file identity matters here.
struct Files {
    dir: tempfile::TempDir,
    /// Held open, so that inode numbers are not reused.
    open: RefCell<Vec<File>>,
}

impl Files {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), open: RefCell::default() }
    }

    /// Returns the identity of a new file each time.
    fn make(&self, name: &str) -> SocketIdentity {
        let path = self.dir.path().join(name);
        self.open.borrow_mut().push(File::create_new(&path).unwrap());
        let identity = SocketIdentity::of_path(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        identity
    }
}

fn version(text: &str) -> Version {
    let info = PluginInfo {
        r#type: "CSIPlugin".into(),
        name: "a.example.com".into(),
        endpoint: String::new(),
        supported_versions: vec![text.into()],
    };
    validate(&info).unwrap()
}

fn registration(identity: &SocketIdentity, driver: &SocketIdentity) -> Registration {
    Registration {
        identity: identity.clone(),
        plugin: Plugin::new("a.example.com", "/csi.sock".parse().unwrap()),
        queried_socket: Some(driver.clone()),
        now: Some(driver.clone()),
        queried_at: Duration::ZERO,
        refreshes_served: 0,
        written: true,
        notified: true,
    }
}

fn facts(registration: &Registration) -> Facts {
    Facts {
        notified: registration.notified,
        entries: Entries::Current,
        driver: registration.driver(),
        queried_at: registration.queried_at,
        period: None,
        refresh_requested: false,
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn recreated_socket_counts_as_new() {
    let files = Files::new();
    let (path, first, second) = (PathBuf::from("/r/a.sock"), files.make("a"), files.make("b"));
    let sockets = |identity: &SocketIdentity| Sockets::from([(path.clone(), identity.clone())]);
    let mut world = World::default();
    let socket = |world: &World| world.view(&path, facts).map(|view| view.socket);
    assert_eq!(socket(&world), None);

    assert_eq!(world.observe(&sockets(&first), at(1)), std::slice::from_ref(&path));
    assert_eq!(socket(&world), Some(Socket::New { since: at(1) }));
    assert!(world.observe(&sockets(&first), at(2)).is_empty(), "no change");

    world.begin(&path);
    world.set_state(&path, SocketState::Refused(first.clone()));
    world.failed(&path, at(2), |failures| at(u64::from(failures) + 1));
    world.failed(&path, at(3), |failures| at(u64::from(failures) + 1));
    let view = world.view(&path, facts).unwrap();
    assert_eq!((view.socket, view.not_before), (Socket::Same, Some(at(5))), "backoff grows");

    assert_eq!(world.observe(&sockets(&second), at(4)), std::slice::from_ref(&path));
    let view = world.view(&path, facts).unwrap();
    assert_eq!(
        (view.socket, view.not_before),
        (Socket::New { since: at(4) }, None),
        "re-created: no backoff"
    );

    assert_eq!(world.observe(&Sockets::new(), at(6)), std::slice::from_ref(&path));
    assert_eq!(socket(&world), Some(Socket::Gone { since: at(6) }));
    assert!(world.observe(&Sockets::new(), at(7)).is_empty());
    assert_eq!(socket(&world), Some(Socket::Gone { since: at(6) }), "gone since first observed");
    world.drop_record(&path);
    assert_eq!(socket(&world), None);

    world.observe(&sockets(&first), at(8));
    world.drop_record(&path);
    assert!(socket(&world).is_some(), "an existing socket is not dropped");
}

#[tokio::test]
async fn driver_restart_is_detected_by_its_socket() {
    let files = Files::new();
    let (path, socket) = (PathBuf::from("/r/a.sock"), files.make("a"));
    let (first, second) = (files.make("b"), files.make("c"));
    let mut world = World::default();
    world.observe(&Sockets::from([(path.clone(), socket.clone())]), at(1));
    world.set_state(&path, SocketState::Registered(Box::new(registration(&socket, &first))));
    let driver = |world: &World| world.registration(&path).unwrap().driver();
    for (found, changed, expected) in [
        (Some(first.clone()), false, Driver::Same),
        (None, true, Driver::Absent),
        (None, false, Driver::Absent),
        (Some(second.clone()), true, Driver::Restarted),
        (Some(first), true, Driver::Same),
    ] {
        let woken = world.observe_drivers(|path| {
            assert_eq!(path, Path::new("/csi.sock"));
            found.clone()
        });
        assert_eq!(!woken.is_empty(), changed, "{found:?}");
        assert_eq!(driver(&world), expected, "{found:?}");
    }
}

/// kubernetes.md 1.6 "Same name".
#[tokio::test]
async fn highest_version_owns_the_driver_name() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let (first, second, driver) = (files.make("a"), files.make("b"), files.make("c"));
    let name = "a.example.com";
    let mut world = World::default();
    world.observe(&Sockets::from([(a.clone(), first.clone()), (b.clone(), second.clone())]), at(1));
    world.claim(&a, name, version("1.1.0")).unwrap();
    world.set_state(&a, SocketState::Registered(Box::new(registration(&first, &driver))));
    assert_eq!(world.registered(), [(a.clone(), name.to_owned())]);

    world.claim(&a, name, version("1.0.0")).expect("its own name, re-registered");
    for lower in ["1.0.0", "1.0"] {
        assert_eq!(world.check_name(&b, name, &version(lower)), Err(Invalid::Taken("1.0.0".into())));
    }
    assert!(
        !world.is_available_to(&b, name)
            && world.is_available_to(&a, name)
            && world.is_available_to(&b, "other")
    );
    assert!(world.release_name(&b, name).is_empty(), "not the owner");
    assert!(!world.is_available_to(&b, name));

    world.claim(&b, name, version("1.2.0")).expect("higher");
    let view = world.view(&a, facts).unwrap();
    assert_eq!((view.socket, view.phase), (Socket::Same, Phase::Superseded));
    assert!(world.registered().is_empty());

    assert_eq!(
        world.release_name(&b, name),
        std::slice::from_ref(&a),
        "the socket waiting for the name is woken"
    );
    assert_eq!(world.view(&a, facts).unwrap().phase, Phase::Refused);
    assert!(world.is_available_to(&a, name));
}

#[tokio::test]
async fn wake_all_clears_backoff() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let mut world = World::default();
    world.observe(&Sockets::from([(a.clone(), files.make("a")), (b.clone(), files.make("b"))]), at(1));
    world.begin(&a);
    world.failed(&a, at(1), |_| at(60));
    assert_eq!(world.wake_all(), std::slice::from_ref(&a));
    assert_eq!(world.view(&a, facts).unwrap().not_before, None);
    assert!(world.wake_all().is_empty());

    world.begin(&b);
    world.set_state(&b, SocketState::Deregistering("a.example.com".into()));
    world.failed(&b, at(2), |failures| at(u64::from(failures)));
    world.succeeded(&b);
    world.failed(&b, at(2), |failures| at(u64::from(failures)));
    let view = world.view(&b, facts).unwrap();
    assert_eq!(
        (view.phase, view.not_before),
        (Phase::Deregistering, Some(at(2))),
        "a success resets the failure count"
    );
}

/// If a name is released while a registration is being refused for it, the refusal is outdated.
#[tokio::test]
async fn change_during_a_step_prevents_backoff() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let sockets = Sockets::from([(a.clone(), files.make("a")), (b.clone(), files.make("b"))]);
    let mut world = World::default();
    world.observe(&sockets, at(1));
    world.claim(&a, "a.example.com", version("1.0.0")).unwrap();
    let not_before = |world: &World| world.view(&b, facts).unwrap().not_before;
    let fail = |world: &mut World| world.failed(&b, at(2), |_| at(600));
    type Row<'a> = (&'a str, &'a dyn Fn(&mut World));
    let sooner: [Row<'_>; 4] = [
        ("name released", &|world| assert!(world.release_name(&a, "a.example.com").is_empty())),
        ("all woken", &|world| assert!(world.wake_all().is_empty())),
        ("socket removed", &|world| assert!(!world.observe(&Sockets::new(), at(2)).is_empty())),
        ("nothing", &|_| {}),
    ];
    for (event, change) in sooner {
        world.begin(&b);
        change(&mut world);
        fail(&mut world);
        assert_eq!(not_before(&world).is_some(), event == "nothing", "{event}");
    }
}
