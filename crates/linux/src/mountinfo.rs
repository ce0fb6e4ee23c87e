//! The mount table of `/proc/self/mountinfo`: parsed completely or not at all.

use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Device number of the file system: equal for all mounts of one file system.
    pub device: (u32, u32),
    /// The part of the file system that is mounted; `/` for all of it. For a bind of a file or device node, its path.
    pub root: PathBuf,
    /// The path at which it is mounted.
    pub mount_point: PathBuf,
    /// Options of this mount (`ro`, `nosuid`, …).
    pub options: Vec<String>,
    /// File system type.
    pub fs_type: String,
    /// The source given to mount: a device node or any other string.
    pub source: String,
    /// Options of the file system, common to all its mounts.
    pub super_options: Vec<String>,
}

impl Mount {
    /// Whether this mount or its file system is read-only.
    pub fn is_read_only(&self) -> bool {
        let ro = |options: &[String]| options.iter().any(|option| option == "ro");
        ro(&self.options) || ro(&self.super_options)
    }
}

/// A malformed line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mount table, line {line}: {problem}")]
pub struct ParseError {
    /// The line number, from 1.
    pub line: usize,
    /// What is wrong with the line.
    pub problem: &'static str,
}

/// All mounts of this mount namespace, in the kernel's order: later mounts cover earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Parses the kernel's output. One malformed line makes the whole table an error: decisions must not be based on an
    /// incomplete table.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let mounts = lines
            .enumerate()
            .map(|(i, line)| parse_line(line).map_err(|problem| ParseError { line: i + 1, problem }))
            .collect::<Result<_, _>>()?;
        Ok(Self { mounts })
    }

    /// Replaces the anonymous device number of btrfs mounts (each subvolume has its own) with the number of the block
    /// device, which `number_of` returns for the source. So [`Self::of_device`] finds them like all others.
    pub(crate) fn with_device_numbers(mut self, number_of: impl Fn(&str) -> Option<(u32, u32)>) -> Self {
        for mount in self.mounts.iter_mut().filter(|mount| mount.fs_type == "btrfs") {
            mount.device = number_of(&mount.source).unwrap_or(mount.device);
        }
        self
    }

    /// All mounts.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The topmost mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// The mount that holds `path`: the deepest one, and of several at one mount point the topmost.
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        let holding = self.mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
        holding.max_by_key(|mount| mount.mount_point.components().count())
    }

    /// All mounts of the file system on the device with this number.
    pub fn of_device(&self, device: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |mount| mount.device == device)
    }

    /// All binds of the device node of this name (`loop3`), as for raw block volumes.
    pub fn of_device_node<'a>(&'a self, node: &'a Path) -> impl Iterator<Item = &'a Mount> {
        let name = node.file_name();
        self.mounts.iter().filter(move |mount| {
            mount.fs_type == "devtmpfs"
                && mount.root.parent() == Some(Path::new("/"))
                && mount.root.file_name() == name
        })
    }
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`
fn parse_line(line: &[u8]) -> Result<Mount, &'static str> {
    let mut fields = line.split(|&b| b == b' ');
    let mut next = |problem| fields.next().ok_or(problem);
    next("no id")?;
    next("no parent id")?;
    let device = parse_device(next("no device number")?).ok_or("bad device number")?;
    let root = path(next("no root")?);
    let mount_point = path(next("no mount point")?);
    let options = options_of(next("no options")?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let mut next = |problem| rest.next().ok_or(problem);
    let fs_type = string(next("no file system type")?);
    let source = string(next("no source")?);
    let super_options = options_of(next("no file system options")?);
    Ok(Mount { device, root, mount_point, options, fs_type, source, super_options })
}

fn parse_device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn options_of(field: &[u8]) -> Vec<String> {
    string(field).split(',').map(str::to_owned).collect()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(unescape(field)))
}

fn string(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// The kernel escapes space, tab, newline, backslash and `#` as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = |b: u8| (b'0'..=b'7').contains(&b).then(|| u32::from(b - b'0'));
        let escaped = match (byte, tail) {
            (b'\\', [a, b, c, ..]) => (|| u8::try_from(octal(*a)? * 64 + octal(*b)? * 8 + octal(*c)?).ok())(),
            _ => None,
        };
        match escaped {
            Some(value) => (out.push(value), rest = &tail[3..]),
            None => (out.push(byte), rest = tail),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:5 / /dev rw - devtmpfs devtmpfs rw,size=1k
40 22 7:3 / /a\\040b ro,noatime shared:2 master:1 - xfs /dev/loop3 rw,attr2
41 22 0:5 /loop4 /pods/x/dev rw - devtmpfs devtmpfs rw,size=1k
42 22 7:3 / /a\\040b/over rw - xfs /dev/loop3 rw,attr2
";

    #[test]
    fn mounts_are_found_by_path_device_and_node() {
        let table = MountTable::parse(TABLE.as_bytes()).unwrap();
        let mount = table.at(Path::new("/a b")).unwrap();
        assert_eq!((mount.fs_type.as_str(), mount.source.as_str()), ("xfs", "/dev/loop3"));
        assert!(mount.is_read_only());
        assert_eq!(table.of_device((7, 3)).count(), 2);
        let bound: Vec<_> = table.of_device_node(Path::new("/dev/loop4")).collect();
        assert_eq!(bound.len(), 1);
        assert_eq!(bound[0].mount_point, Path::new("/pods/x/dev"));
        assert!(table.at(Path::new("/a")).is_none());
    }

    #[test]
    fn btrfs_is_found_by_its_device_number() {
        let text = "50 22 0:41 / /b rw - btrfs /dev/loop5 rw,subvolid=5\n51 22 0:42 / /t rw - tmpfs t rw\n";
        let table = MountTable::parse(text.as_bytes()).unwrap();
        assert_eq!(table.of_device((7, 5)).count(), 0);
        let table = table.with_device_numbers(|source| (source == "/dev/loop5").then_some((7, 5)));
        assert_eq!(table.of_device((7, 5)).count(), 1);
        assert_eq!(table.of_device((0, 42)).count(), 1);
        let gone = MountTable::parse(text.as_bytes()).unwrap().with_device_numbers(|_| None);
        assert_eq!(gone.of_device((0, 41)).count(), 1);
    }

    #[test]
    fn malformed_line_is_an_error() {
        for bad in ["22 1 254:0 / /", "22 1 x:0 / / rw - ext4 a rw", "22 1 8:1 / / rw shared:1", "- - - -"] {
            let text = format!("{TABLE}{bad}\n");
            assert_eq!(MountTable::parse(text.as_bytes()).unwrap_err().line, 6, "{bad}");
        }
    }

    fn escape(text: &str) -> String {
        text.chars()
            .map(|c| match c {
                ' ' | '\t' | '\n' | '\\' | '#' => format!("\\{:03o}", u32::from(c)),
                c => c.to_string(),
            })
            .collect()
    }

    proptest::proptest! {
        /// Any bytes result in a table or an error, never in a panic.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _ = MountTable::parse(&bytes);
        }

        /// The same for lines that are almost correct.
        #[test]
        fn almost_correct_lines_never_panic(line in "[0-9: /a-z,\\\\-]{0,120}") {
            let _ = MountTable::parse(line.as_bytes());
        }

        /// Escaped names are parsed back to the original names.
        #[test]
        fn escaped_names_round_trip(
            root in "/[ -~\t\n\u{e4}]{0,20}",
            mount_point in "/[ -~\t\n\u{e4}]{0,20}",
            source in "[ -~\u{e4}]{1,20}",
            device in (0_u32..4096, 0_u32..1_048_576),
            tags in proptest::collection::vec("(shared|master|propagate_from):[0-9]{1,3}", 0..3),
        ) {
            let tags: String = tags.iter().map(|tag| format!("{tag} ")).collect();
            let line = format!(
                "36 35 {}:{} {} {} rw,noatime {tags}- ext4 {} rw,errors=continue\n",
                device.0, device.1, escape(&root), escape(&mount_point), escape(&source),
            );
            let table = MountTable::parse(line.as_bytes()).unwrap();
            let [mount] = table.mounts() else { panic!("{} mounts", table.mounts().len()) };
            proptest::prop_assert_eq!(mount.device, device);
            proptest::prop_assert_eq!(&mount.root, Path::new(&root));
            proptest::prop_assert_eq!(&mount.mount_point, Path::new(&mount_point));
            proptest::prop_assert_eq!(&mount.source, &source);
            proptest::prop_assert_eq!(&mount.fs_type, "ext4");
        }
    }
}
