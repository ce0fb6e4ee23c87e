//! Valid, corrupt and incomplete backups, and chains of backups.

use super::*;

fn header(handle: &str, size: u64, base: Option<Base>) -> Header {
    Header { volume_size: size, snapshot_handle: handle.to_owned(), base }
}

type Blocks = Vec<(u64, Vec<u8>)>;

fn blocks_of(path: &Path) -> Result<(VerifiedBackup, Blocks), FileError> {
    let mut blocks = Vec::new();
    let checked = read(path, |offset, bytes| {
        blocks.push((offset, bytes.to_vec()));
        Ok(())
    })?;
    Ok((checked, blocks))
}

fn write_backup(path: &Path) -> String {
    let mut writer = Writer::create(path, &header("snap-1", 100, None)).unwrap();
    writer.write_block(0, b"abc").unwrap();
    writer.write_block(50, b"de").unwrap();
    writer.finish().unwrap()
}

#[test]
fn written_backup_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let sha256 = write_backup(&path);
    let (checked, blocks) = blocks_of(&path).unwrap();
    assert_eq!(checked, VerifiedBackup { path: path.clone(), header: header("snap-1", 100, None), sha256 });
    assert_eq!(blocks, [(0, b"abc".to_vec()), (50, b"de".to_vec())]);
    assert!(Writer::create(&path, &header("snap-1", 100, None)).is_err(), "overwrote a backup");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn dropped_writer_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut writer = Writer::create(&path, &header("snap-1", 100, None)).unwrap();
    writer.write_block(0, b"abc").unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn changed_or_truncated_backups_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    write_backup(&path);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(blocks_of(&path).is_err(), "bit flipped in byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        assert!(blocks_of(&path).is_err(), "truncated at {at}");
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    assert!(blocks_of(&path).is_err(), "data appended");
}

#[test]
fn finish_does_not_replace_a_backup_of_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let writer = Writer::create(&path, &header("snap-1", 100, None)).unwrap();
    fs::write(&path, "other backup").unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"other backup");
}

#[test]
fn unfinished_file_of_a_killed_process_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.unfinished"), "").unwrap();
    let error = Writer::create(&dir.path().join("a"), &header("snap-1", 100, None)).err().unwrap();
    assert!(error.to_string().contains("a.unfinished"), "{error}");
}

#[test]
fn blocks_outside_the_volume_or_out_of_order_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    for (name, blocks) in [("past", &[(99, "ab")][..]), ("back", &[(10, "ab"), (11, "c")])] {
        let path = dir.path().join(name);
        let mut writer = Writer::create(&path, &header("s", 100, None)).unwrap();
        for (offset, bytes) in blocks {
            writer.write_block(*offset, bytes.as_bytes()).unwrap();
        }
        writer.finish().unwrap();
        let error = blocks_of(&path).unwrap_err().to_string();
        assert!(error.contains("out of order"), "{name}: {error}");
    }
}

#[test]
fn chain_needs_a_full_backup_and_matching_bases() {
    let backup = |handle: &str, sha256: &str, size, base: Option<(&str, &str)>| VerifiedBackup {
        path: handle.into(),
        sha256: sha256.into(),
        header: header(
            handle,
            size,
            base.map(|(handle, sha256)| Base { snapshot_handle: handle.into(), sha256: sha256.into() }),
        ),
    };
    let full = backup("s1", "d1", 100, None);
    let second = backup("s2", "d2", 100, Some(("s1", "d1")));
    let third = backup("s3", "d3", 200, Some(("s2", "d2")));
    for (chained, expected) in [
        (vec![&full], None),
        (vec![&full, &second, &third], None),
        (vec![&second], Some("list that backup before it")),
        (vec![&full, &full], Some("must be the first")),
        (vec![&full, &third], Some("s1 is a different backup")),
        (vec![&full, &backup("s2", "d2", 100, Some(("s1", "other")))], Some("s1 is a different backup")),
        (vec![&full, &backup("s2", "d2", 100, Some(("other", "d1")))], Some("s1 is a different backup")),
        (vec![&full, &backup("s2", "d2", 50, Some(("s1", "d1")))], Some("cannot shrink")),
    ] {
        let chained: Vec<VerifiedBackup> = chained.into_iter().cloned().collect();
        let error = check_chain(&chained).err().map(|error| error.to_string());
        match expected {
            None => assert_eq!(error, None),
            Some(text) => assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{error:?}"),
        }
    }
}
