//! The table of device states: format, mount or refuse. A refusal leaves every byte of the image unchanged.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use tonic::Code;
use wharf_driver::backend::FormatState;
use wharf_linux::FsType;

use crate::support::{Bench, MIB, block, mount, mount_with, refused, run, text};
use wharf_csi::v1::volume_capability::access_mode::Mode;

const OURS: &str = "11111111-2222-4333-8444-555555555555";
const THEIRS: &str = "99999999-2222-4333-8444-555555555555";
const SIZE: u64 = 64 * MIB;

fn ext4(image: &Path, uuid: &str, label: &str) {
    run("mkfs.ext4", &["-q", "-F", "-U", uuid, "-L", label, &text(image)]);
}

fn write(image: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

fn uuid_of(device: &Path) -> String {
    run("blkid", &["-p", "-o", "value", "-s", "UUID", &text(device)])
}

fn label_of(image: &Path) -> String {
    run("e2label", &[&text(image)])
}

fn formatting() -> FormatState {
    FormatState::Formatting { fs: FsType::Ext4, uuid: OURS.into() }
}

fn formatted() -> FormatState {
    FormatState::Formatted { fs: FsType::Ext4, uuid: OURS.into() }
}

fn copied() -> FormatState {
    FormatState::Copied { fs: FsType::Ext4, uuid: OURS.into() }
}

/// Writes the content of an image before it is staged.
type Content = fn(&Path);

fn nothing(_: &Path) {}

fn own(image: &Path) {
    ext4(image, OURS, "kept");
}

fn other(image: &Path) {
    ext4(image, THEIRS, "theirs");
}

fn foreign_filesystem(image: &Path) {
    run("mkfs.ext2", &["-q", "-F", &text(image)]);
}

fn partition_table(image: &Path) {
    // One Linux partition from sector 2048 on.
    write(image, 446, &[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    write(image, 510, &[0x55, 0xaa]);
}

fn luks(image: &Path) {
    write(image, 0, b"LUKS\xba\xbe\x00\x02");
}

fn torn(image: &Path) {
    own(image);
    write(image, 1024 + 512, &[0x5a; 256]);
}

fn data_in_the_middle(image: &Path) {
    write(image, 30 * MIB + 12345, &vec![0xa5; MIB as usize]);
}

fn one_byte_at_the_end(image: &Path) {
    write(image, SIZE - 1, &[1]);
}

#[tokio::test]
async fn refused_stage_leaves_the_image_unchanged() {
    let refusals: &[(&str, FormatState, Content, &str)] = &[
        ("blank, own", FormatState::Blank, own, OURS),
        ("blank, foreign", FormatState::Blank, foreign_filesystem, "ext2"),
        ("blank, partitions", FormatState::Blank, partition_table, "partition"),
        ("blank, luks", FormatState::Blank, luks, "LUKS"),
        ("blank, torn", FormatState::Blank, torn, "checksum"),
        ("blank, data", FormatState::Blank, data_in_the_middle, "not zero"),
        ("blank, one byte", FormatState::Blank, one_byte_at_the_end, "not zero"),
        ("formatting, other", formatting(), other, THEIRS),
        ("formatting, luks", formatting(), luks, "LUKS"),
        ("formatted, nothing", formatted(), nothing, "no file system was found"),
        ("formatted, swapped", formatted(), other, THEIRS),
        ("formatted, torn", formatted(), torn, "checksum"),
        ("formatted, foreign", formatted(), foreign_filesystem, "ext2"),
        ("formatted, data", formatted(), data_in_the_middle, "no file system was found"),
        ("copied, nothing", copied(), nothing, "no file system was found"),
        ("copied, luks", copied(), luks, "LUKS"),
        ("raw, nothing", FormatState::Raw, nothing, "raw device"),
        ("raw, data", FormatState::Raw, data_in_the_middle, "raw device"),
    ];
    let bench = Bench::new().await;
    for (name, record, content, found) in refusals {
        bench.images.create("v", SIZE, record.clone());
        let image = bench.images.image("v");
        content(&image);
        let before = std::fs::read(&image).unwrap();
        for attempt in ["first", "second"] {
            let result = bench.stage("v", &mount("ext4")).await;
            let status = result.expect_err(name);
            assert_eq!(status.code(), Code::FailedPrecondition, "{name}: {status}");
            assert!(status.message().contains(found), "{name}: {found:?} is not in {status}");
            assert!(
                std::fs::read(&image).unwrap() == before,
                "{name}: the {attempt} attempt changed the image"
            );
        }
        assert_eq!(bench.images.format_of("v"), *record, "{name}");
        assert_eq!(bench.images.device("v"), None, "{name}: a refused volume must not stay attached");
        assert!(!bench.staging("v").exists(), "{name}");
    }
}

#[tokio::test]
async fn blank_volume_is_formatted_once() {
    let bench = Bench::new().await;
    for (fs, size) in [("ext4", SIZE), ("xfs", 300 * MIB), ("btrfs", 128 * MIB)] {
        bench.images.create(fs, size, FormatState::Blank);
        bench.stage(fs, &mount(fs)).await.unwrap();
        std::fs::write(bench.staging(fs).join("file"), fs).unwrap();
        let FormatState::Formatted { uuid, .. } = bench.images.format_of(fs) else {
            panic!("{fs} is not recorded")
        };
        assert_eq!(uuid_of(&bench.images.device(fs).unwrap().path), uuid);

        bench.unstage(fs).await.unwrap();
        assert_eq!(bench.images.device(fs), None);
        bench.stage(fs, &mount("")).await.unwrap();
        assert_eq!(std::fs::read_to_string(bench.staging(fs).join("file")).unwrap(), fs);
        refused(
            bench.stage(fs, &mount(if fs == "xfs" { "ext4" } else { "xfs" })).await,
            Code::AlreadyExists,
            fs,
        );
    }
}

#[tokio::test]
async fn interrupted_format_is_always_repeated() {
    // N-M5: a whole file system with our UUID, too, since nothing proves that its mkfs had finished.
    let cases: &[(&str, Content)] =
        &[("without remains", nothing), ("whole", own), ("torn", torn), ("bytes", data_in_the_middle)];
    for (name, content) in cases {
        let bench = Bench::new().await;
        bench.images.create("v", SIZE, formatting());
        let image = bench.images.image("v");
        content(&image);
        bench.stage("v", &mount("ext4")).await.unwrap_or_else(|status| panic!("{name}: {status}"));
        assert_eq!(bench.images.format_of("v"), formatted(), "{name}");
        bench.unstage("v").await.unwrap();
        assert_eq!(uuid_of(&image), OURS, "{name}: the recorded UUID must be used");
        assert_ne!(label_of(&image), "kept", "{name}");
    }
}

#[tokio::test]
async fn zero_proof_alone_decides_without_a_record() {
    let bench = Bench::without_records().await;
    bench.images.create("blank", SIZE, FormatState::Raw);
    bench.stage("blank", &mount("")).await.unwrap();
    assert_eq!(bench.mount_at(&bench.staging("blank")).unwrap().fs_type, "ext4");

    bench.images.create("own", SIZE, FormatState::Raw);
    own(&bench.images.image("own"));
    bench.stage("own", &mount("ext4")).await.unwrap();
    refused(bench.stage("own", &mount("xfs")).await, Code::AlreadyExists, "ext4");

    for (name, content) in [("data", data_in_the_middle as Content), ("luks", luks), ("torn", torn)] {
        bench.images.create(name, SIZE, FormatState::Raw);
        content(&bench.images.image(name));
        let before = std::fs::read(bench.images.image(name)).unwrap();
        refused(
            bench.stage(name, &mount("ext4")).await,
            Code::FailedPrecondition,
            "not one byte was written",
        );
        assert!(std::fs::read(bench.images.image(name)).unwrap() == before, "{name}");
    }
}

#[tokio::test]
async fn wrong_device_is_not_changed() {
    let bench = Bench::new().await;
    let unchanged =
        |before: &[u8], id: &str| assert!(std::fs::read(bench.images.image(id)).unwrap() == before);

    refused(bench.stage("none", &mount("ext4")).await, Code::NotFound, "none");
    bench.images.create("missing", SIZE, FormatState::Blank);
    std::fs::remove_file(bench.images.image("missing")).unwrap();
    refused(bench.stage("missing", &mount("ext4")).await, Code::NotFound, "no image");

    bench.images.create("swapped", SIZE, FormatState::Blank);
    let kept = bench.images.image("kept-open");
    std::fs::rename(bench.images.image("swapped"), kept).unwrap();
    std::fs::write(bench.images.image("swapped"), vec![0; SIZE as usize]).unwrap();
    refused(bench.stage("swapped", &mount("ext4")).await, Code::FailedPrecondition, "a different file");
    unchanged(&vec![0; SIZE as usize], "swapped");

    for (id, wrong) in [("larger", SIZE + MIB), ("smaller", SIZE - MIB)] {
        bench.images.create(id, SIZE, FormatState::Blank);
        bench.images.change(id, |entry| entry.size = wrong);
        refused(bench.stage(id, &mount("ext4")).await, Code::FailedPrecondition, &wrong.to_string());
        refused(bench.stage(id, &block(Mode::SingleNodeWriter)).await, Code::FailedPrecondition, "bytes");
        unchanged(&vec![0; SIZE as usize], id);
    }
}

#[tokio::test]
async fn unreadable_device_is_not_formatted() {
    let bench = Bench::new().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    bench.stage("v", &block(Mode::SingleNodeWriter)).await.unwrap();
    bench.images.change("v", |entry| entry.format = FormatState::Blank);
    // The device keeps its size, but the range beyond the new end of the image cannot be read.
    let image = File::options().write(true).open(bench.images.image("v")).unwrap();
    image.set_len(SIZE / 2).unwrap();
    refused(bench.stage("v", &mount("ext4")).await, Code::Internal, "read");
    assert!(std::fs::read(bench.images.image("v")).unwrap() == vec![0; (SIZE / 2) as usize]);
    assert_eq!(bench.images.format_of("v"), FormatState::Blank);
}

#[tokio::test]
async fn restored_snapshot_mounts_together_with_its_source() {
    let bench = Bench::new().await;
    for (fs, size) in [(FsType::Ext4, SIZE), (FsType::Xfs, 300 * MIB), (FsType::Btrfs, 128 * MIB)] {
        let (source, copy) = (fs.to_string(), format!("{fs}-copy"));
        bench.images.create(&source, size, FormatState::Blank);
        bench.stage(&source, &mount(fs.as_str())).await.unwrap();
        std::fs::write(bench.staging(&source).join("file"), "before the copy").unwrap();
        run("fsfreeze", &["-f", &text(&bench.staging(&source))]);
        bench.images.copy(&source, &copy, FormatState::Copied { fs, uuid: OURS.into() });
        run("fsfreeze", &["-u", &text(&bench.staging(&source))]);

        bench.stage(&copy, &mount(fs.as_str())).await.unwrap_or_else(|status| panic!("{fs}: {status}"));
        assert_eq!(bench.images.format_of(&copy), FormatState::Formatted { fs, uuid: OURS.into() });
        std::fs::write(bench.staging(&source).join("file"), "source").unwrap();
        let kept = std::fs::read_to_string(bench.staging(&copy).join("file")).unwrap();
        assert_eq!(kept, "before the copy", "{fs}");
        std::fs::write(bench.staging(&copy).join("file"), "copy").unwrap();

        for id in [&source, &copy] {
            bench.unstage(id).await.unwrap();
            bench.stage(id, &mount(fs.as_str())).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(bench.staging(&source).join("file")).unwrap(), "source", "{fs}");
        assert_eq!(std::fs::read_to_string(bench.staging(&copy).join("file")).unwrap(), "copy", "{fs}");
        assert!(!bench.staging(&copy).join(".wharf-scratch").exists());
        for id in [&source, &copy] {
            bench.unstage(id).await.unwrap();
            assert_eq!(std::fs::read_dir(bench.staging(id)).unwrap().count(), 0, "{fs}");
        }
    }
}

#[tokio::test]
async fn interrupted_uuid_change_is_cleaned_up_or_repeated() {
    let bench = Bench::new().await;
    bench.images.create("source", SIZE, FormatState::Blank);
    bench.stage("source", &mount("ext4")).await.unwrap();
    bench.unstage("source").await.unwrap();
    bench.images.copy("source", "v", copied());
    // As if the driver had crashed while it had the copy mounted to replay its log.
    let interrupted = async || {
        bench.stage("v", &block(Mode::SingleNodeWriter)).await.unwrap();
        let scratch = bench.staging("v").join(".wharf-scratch");
        std::fs::create_dir_all(&scratch).unwrap();
        run("mount", &[&text(&bench.images.device("v").unwrap().path), &text(&scratch)]);
        scratch
    };
    let scratch = interrupted().await;
    bench.unstage("v").await.unwrap();
    assert!(!scratch.exists());
    assert_eq!((bench.images.device("v"), bench.images.format_of("v")), (None, copied()));

    interrupted().await;
    bench.stage("v", &mount("ext4")).await.unwrap();
    assert_eq!(bench.images.format_of("v"), formatted());
    assert_eq!(uuid_of(&bench.images.device("v").unwrap().path), OURS);
    bench.unstage("v").await.unwrap();
    assert!(!scratch.exists());
}

#[tokio::test]
async fn raw_volume_is_never_formatted() {
    let bench = Bench::new().await;
    for record in [FormatState::Blank, formatting()] {
        bench.images.create("v", SIZE, record);
        bench.stage("v", &block(Mode::SingleNodeWriter)).await.unwrap();
        assert_eq!(bench.images.format_of("v"), FormatState::Raw);
        bench.unstage("v").await.unwrap();
        refused(bench.stage("v", &mount("ext4")).await, Code::FailedPrecondition, "raw device");
    }
    bench.images.create("own", SIZE, formatted());
    bench.stage("own", &block(Mode::SingleNodeWriter)).await.unwrap();
    assert_eq!(bench.images.format_of("own"), formatted());
}

#[tokio::test]
async fn read_only_volume_is_never_formatted() {
    let bench = Bench::new().await;
    let reader = mount_with("ext4", &[], Mode::SingleNodeReaderOnly);
    bench.images.create("blank", SIZE, FormatState::Blank);
    refused(bench.stage("blank", &reader).await, Code::FailedPrecondition, "read-only");
    assert!(std::fs::read(bench.images.image("blank")).unwrap() == vec![0; SIZE as usize]);

    bench.images.create("own", SIZE, formatted());
    own(&bench.images.image("own"));
    bench.stage("own", &reader).await.unwrap();
    assert!(std::fs::write(bench.staging("own").join("file"), "").is_err());
}

#[tokio::test]
async fn device_too_small_for_the_type_is_refused() {
    let bench = Bench::new().await;
    bench.images.create("v", SIZE, FormatState::Blank);
    refused(bench.stage("v", &mount("xfs")).await, Code::FailedPrecondition, "xfs needs");
    assert_eq!(bench.images.format_of("v"), FormatState::Blank);
    refused(bench.stage("v", &mount("ntfs")).await, Code::InvalidArgument, "ntfs");
}
