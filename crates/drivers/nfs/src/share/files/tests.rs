use std::os::unix::fs::symlink;

use super::*;

fn share() -> (tempfile::TempDir, LinuxFiles) {
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(outside.path().join("root")).unwrap();
    std::fs::write(outside.path().join("canary"), "alive").unwrap();
    let files = LinuxFiles::open(&outside.path().join("root")).unwrap();
    (outside, files)
}

#[test]
fn only_plain_relative_paths_are_accepted() {
    for (path, passes) in [
        (".", true),
        ("a", true),
        ("a/b.c", true),
        ("...", true),
        ("", false),
        ("/a", false),
        ("/", false),
        ("..", false),
        ("a/../b", false),
        ("./a", false),
        ("a\0b", false),
    ] {
        assert_eq!(check(Path::new(path)).is_ok(), passes, "{path:?}");
    }
}

// B6
#[test]
fn symlinks_are_never_followed() {
    let (outside, files) = share();
    let root = outside.path().join("root");
    symlink("..", root.join("up")).unwrap();
    symlink("../canary", root.join("file")).unwrap();
    let up = Path::new("up/canary");
    assert!(files.read(up).is_err());
    assert!(files.read(Path::new("file")).is_err());
    assert!(files.create_file(Path::new("up/new"), b"x").is_err());
    assert!(files.create_dir(Path::new("up/new")).is_err());
    assert!(files.remove_file(up).is_err());
    assert!(files.rename(up, Path::new("stolen")).is_err());
    assert!(files.list(Path::new("up")).is_err());
    assert!(files.set_mode(Path::new("up"), 0o777).is_err());
    assert!(files.remove_entries(Path::new("up"), 10).is_err());
    assert_eq!(files.stat(Path::new("up")).unwrap().unwrap().kind, EntryKind::Symlink);
    assert_eq!(std::fs::read_to_string(outside.path().join("canary")).unwrap(), "alive");
    // A symlink itself is an entry like any other.
    assert_eq!(files.remove_entries(Path::new("."), 10).unwrap().removed, 2);
    assert_eq!(std::fs::read_to_string(outside.path().join("canary")).unwrap(), "alive");
}

#[test]
fn existing_and_missing_paths_are_distinguished() {
    let (_outside, files) = share();
    let (a, b) = (Path::new("a"), Path::new("b"));
    files.create_file(a, b"1").unwrap();
    assert_eq!(files.create_file(a, b"2").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    files.link(a, b).unwrap();
    assert_eq!(files.link(a, b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(files.read(b).unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(files.read(Path::new("none")).unwrap(), None);
    assert_eq!(files.list(Path::new("none")).unwrap(), None);
    assert_eq!(files.stat(Path::new("none/below")).unwrap(), None);
    files.create_dir(Path::new("d")).unwrap();
    assert_eq!(files.create_dir(Path::new("d")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(files.list(Path::new(".")).unwrap().unwrap(), ["a", "b", "d"]);
    assert_eq!(files.remove_dir(Path::new("e")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn entries_are_removed_up_to_a_maximum_and_directories_stay() {
    let (_outside, files) = share();
    for name in ["1", "2", "3"] {
        files.create_file(Path::new(name), b"").unwrap();
    }
    files.create_dir(Path::new("d")).unwrap();
    let first = files.remove_entries(Path::new("."), 2).unwrap();
    assert_eq!((first.removed, first.more, first.directories), (2, true, vec![OsString::from("d")]));
    let second = files.remove_entries(Path::new("."), 2).unwrap();
    assert_eq!((second.removed, second.more), (1, false));
}
