//! Sockets that come, go and quarrel over names.

use std::cell::RefCell;
use std::fs::File;

use wharf_csi::registration::PluginInfo;

use super::*;
use crate::plugins::validate::validate;
use crate::plugins::view::Entries;

/// Files stand for sockets: which one it is counts here, not what.
struct Files {
    dir: tempfile::TempDir,
    /// Held open, so that the number of one is not given to the next.
    open: RefCell<Vec<File>>,
}

impl Files {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), open: RefCell::default() }
    }

    /// Another file each time.
    fn make(&self, name: &str) -> SocketIdentity {
        let path = self.dir.path().join(name);
        self.open.borrow_mut().push(File::create_new(&path).unwrap());
        let identity = SocketIdentity::of(&path).unwrap();
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
        asked: Some(driver.clone()),
        now: Some(driver.clone()),
        asked_at: Duration::ZERO,
        answered: 0,
        written: true,
        told: true,
    }
}

fn facts(registration: &Registration) -> Facts {
    Facts {
        told: registration.told,
        entries: Entries::Right,
        driver: registration.driver(),
        asked_at: registration.asked_at,
        period: None,
        wanted: false,
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn which_socket_it_is() {
    let files = Files::new();
    let (path, first, second) = (PathBuf::from("/r/a.sock"), files.make("a"), files.make("b"));
    let sockets = |identity: &SocketIdentity| Sockets::from([(path.clone(), identity.clone())]);
    let mut world = World::default();
    let socket = |world: &World| world.view(&path, facts).map(|view| view.socket);
    assert_eq!(socket(&world), None);

    assert_eq!(world.saw(&sockets(&first), at(1)), std::slice::from_ref(&path));
    assert_eq!(socket(&world), Some(Socket::New { since: at(1) }));
    assert!(world.saw(&sockets(&first), at(2)).is_empty(), "nothing new");

    world.begin(&path);
    world.hold(&path, Holding::Refused(first.clone()));
    world.failed(&path, at(2), |failures| at(u64::from(failures) + 1));
    world.failed(&path, at(3), |failures| at(u64::from(failures) + 1));
    let view = world.view(&path, facts).unwrap();
    assert_eq!((view.socket, view.not_before), (Socket::Same, Some(at(5))), "pauses grow");

    assert_eq!(world.saw(&sockets(&second), at(4)), std::slice::from_ref(&path));
    let view = world.view(&path, facts).unwrap();
    assert_eq!((view.socket, view.not_before), (Socket::New { since: at(4) }, None), "made anew: no pause");

    assert_eq!(world.saw(&Sockets::new(), at(6)), std::slice::from_ref(&path));
    assert_eq!(socket(&world), Some(Socket::Gone { since: at(6) }));
    assert!(world.saw(&Sockets::new(), at(7)).is_empty());
    assert_eq!(socket(&world), Some(Socket::Gone { since: at(6) }), "gone since it was first seen to be");
    world.forget(&path);
    assert_eq!(socket(&world), None);

    world.saw(&sockets(&first), at(8));
    world.forget(&path);
    assert!(socket(&world).is_some(), "what is there is not forgotten");
}

#[tokio::test]
async fn whether_the_driver_restarted() {
    let files = Files::new();
    let (path, socket) = (PathBuf::from("/r/a.sock"), files.make("a"));
    let (first, second) = (files.make("b"), files.make("c"));
    let mut world = World::default();
    world.saw(&Sockets::from([(path.clone(), socket.clone())]), at(1));
    world.hold(&path, Holding::Registered(Box::new(registration(&socket, &first))));
    let driver = |world: &World| world.registration(&path).unwrap().driver();
    for (found, changed, expected) in [
        (Some(first.clone()), false, Driver::Same),
        (None, true, Driver::Away),
        (None, false, Driver::Away),
        (Some(second.clone()), true, Driver::Restarted),
        (Some(first), true, Driver::Same),
    ] {
        let told = world.saw_drivers(|path| {
            assert_eq!(path, Path::new("/csi.sock"));
            found.clone()
        });
        assert_eq!(!told.is_empty(), changed, "{found:?}");
        assert_eq!(driver(&world), expected, "{found:?}");
    }
}

/// kubernetes.md 1.6 "Same name".
#[tokio::test]
async fn one_socket_has_a_name() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let (first, second, driver) = (files.make("a"), files.make("b"), files.make("c"));
    let name = "a.example.com";
    let mut world = World::default();
    world.saw(&Sockets::from([(a.clone(), first.clone()), (b.clone(), second.clone())]), at(1));
    world.claim(&a, name, version("1.1.0")).unwrap();
    world.hold(&a, Holding::Registered(Box::new(registration(&first, &driver))));
    assert_eq!(world.registered(), [(a.clone(), name.to_owned())]);

    world.claim(&a, name, version("1.0.0")).expect("its own name, made anew");
    for lower in ["1.0.0", "1.0"] {
        assert_eq!(world.may_claim(&b, name, &version(lower)), Err(Invalid::Taken("1.0.0".into())));
    }
    assert!(!world.is_free_for(&b, name) && world.is_free_for(&a, name) && world.is_free_for(&b, "other"));
    assert!(world.release(&b, name).is_empty(), "not its to give up");
    assert!(!world.is_free_for(&b, name));

    world.claim(&b, name, version("1.2.0")).expect("higher");
    let view = world.view(&a, facts).unwrap();
    assert_eq!((view.socket, view.held), (Socket::Same, Held::Superseded));
    assert!(world.registered().is_empty());

    assert_eq!(world.release(&b, name), std::slice::from_ref(&a), "who waits for the name is woken");
    assert_eq!(world.view(&a, facts).unwrap().held, Held::Refused);
    assert!(world.is_free_for(&a, name));
}

#[tokio::test]
async fn what_waits_is_woken() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let mut world = World::default();
    world.saw(&Sockets::from([(a.clone(), files.make("a")), (b.clone(), files.make("b"))]), at(1));
    world.begin(&a);
    world.failed(&a, at(1), |_| at(60));
    assert_eq!(world.wake_all(), std::slice::from_ref(&a));
    assert_eq!(world.view(&a, facts).unwrap().not_before, None);
    assert!(world.wake_all().is_empty());

    world.begin(&b);
    world.hold(&b, Holding::Leaving("a.example.com".into()));
    world.failed(&b, at(2), |failures| at(u64::from(failures)));
    world.succeeded(&b);
    world.failed(&b, at(2), |failures| at(u64::from(failures)));
    let view = world.view(&b, facts).unwrap();
    assert_eq!(
        (view.held, view.not_before),
        (Held::Leaving, Some(at(2))),
        "failures before a success are forgotten"
    );
}

/// A name that became free while somebody was being refused it: the refusal is of before.
#[tokio::test]
async fn what_changes_while_a_step_runs_is_not_missed() {
    let files = Files::new();
    let (a, b) = (PathBuf::from("/r/a.sock"), PathBuf::from("/r/b.sock"));
    let sockets = Sockets::from([(a.clone(), files.make("a")), (b.clone(), files.make("b"))]);
    let mut world = World::default();
    world.saw(&sockets, at(1));
    world.claim(&a, "a.example.com", version("1.0.0")).unwrap();
    let not_before = |world: &World| world.view(&b, facts).unwrap().not_before;
    let fail = |world: &mut World| world.failed(&b, at(2), |_| at(600));
    type Row<'a> = (&'a str, &'a dyn Fn(&mut World));
    let sooner: [Row<'_>; 4] = [
        ("the name", &|world| assert!(world.release(&a, "a.example.com").is_empty())),
        ("anything", &|world| assert!(world.wake_all().is_empty())),
        ("the socket", &|world| assert!(!world.saw(&Sockets::new(), at(2)).is_empty())),
        ("nothing", &|_| {}),
    ];
    for (what, change) in sooner {
        world.begin(&b);
        change(&mut world);
        fail(&mut world);
        assert_eq!(not_before(&world).is_some(), what == "nothing", "{what}");
    }
}
