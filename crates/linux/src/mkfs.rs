//! Arguments for mkfs: our own options, and those options of the user that affect only the device.
//!
//! This is an allow list: unknown options are refused.

use crate::{FsType, MakeFsRequest};

/// The value that an allowed option takes.
enum OptionValue {
    Nothing,
    /// A value, or a list of `key=value` pairs in which these keys are refused.
    ListExcept(&'static [&'static str]),
}

use OptionValue::{ListExcept, Nothing};

const ANY: OptionValue = ListExcept(&[]);

/// Excludes options that set the size or the UUID, or that access another device or file.
const EXT4: &[(&str, OptionValue)] = &[
    ("-b", ANY),
    ("-C", ANY),
    ("-E", ListExcept(&["offset"])),
    ("-g", ANY),
    ("-G", ANY),
    ("-i", ANY),
    ("-I", ANY),
    ("-j", Nothing),
    ("-J", ListExcept(&["device"])),
    ("-L", ANY),
    ("-m", ANY),
    ("-N", ANY),
    ("-O", ListExcept(&["journal_dev"])),
    ("-T", ANY),
];

/// As for ext4. In addition, setting a new UUID on a copy needs checksums and a log without stripe alignment; images
/// have no stripes.
const XFS: &[(&str, OptionValue)] = &[
    ("-b", ANY),
    ("-d", ListExcept(&["file", "name", "size", "su", "sunit", "sw", "swidth"])),
    ("-i", ANY),
    ("-K", Nothing),
    ("-l", ListExcept(&["file", "name", "logdev", "su", "sunit"])),
    ("-L", ANY),
    ("-m", ListExcept(&["uuid", "crc"])),
    ("-n", ANY),
    ("-s", ANY),
];

const BTRFS: &[(&str, OptionValue)] = &[
    ("-d", ANY),
    ("--data", ANY),
    ("-m", ANY),
    ("--metadata", ANY),
    ("-M", Nothing),
    ("--mixed", Nothing),
    ("-n", ANY),
    ("--nodesize", ANY),
    ("-s", ANY),
    ("--sectorsize", ANY),
    ("-L", ANY),
    ("--label", ANY),
    ("-K", Nothing),
    ("--nodiscard", Nothing),
    ("-O", ANY),
    ("--features", ANY),
    ("-R", ANY),
    ("--runtime-features", ANY),
    ("--csum", ANY),
    ("--checksum", ANY),
];

/// A parsed option.
#[derive(Debug, PartialEq, Eq)]
struct MkfsOption {
    name: &'static str,
    value: Option<String>,
}

/// Checks the user's mkfs arguments. The error names the refused option and the reason.
pub fn check_mkfs_options(fs: FsType, options: &[String]) -> Result<(), String> {
    parse(fs, options).map(drop)
}

fn parse(fs: FsType, options: &[String]) -> Result<Vec<MkfsOption>, String> {
    let allowed = match fs {
        FsType::Ext4 => EXT4,
        FsType::Xfs => XFS,
        FsType::Btrfs => BTRFS,
    };
    let mut given = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let refused = |why: &str| format!("option {word:?} of mkfs.{fs} is refused: {why}");
        let (name, attached) = divide(word).ok_or_else(|| refused("it is not an option"))?;
        let Some((name, takes)) = allowed.iter().find(|(allowed, _)| *allowed == name) else {
            let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
            return Err(refused(&format!("allowed are {}", names.join(" "))));
        };
        let value = match (takes, attached) {
            (Nothing, None) => None,
            (Nothing, Some(_)) => return Err(refused("it takes no value")),
            (ListExcept(keys), attached) => {
                let value = attached.or_else(|| words.next().map(String::as_str));
                let value = value.ok_or_else(|| refused("its value is missing"))?;
                check_value(value, keys).map_err(|reason| refused(&reason))?;
                Some(value.to_owned())
            }
        };
        given.push(MkfsOption { name, value });
    }
    Ok(given)
}

/// Splits options such as `-b4096` and `--csum=crc32c` into name and value.
fn divide(word: &str) -> Option<(&str, Option<&str>)> {
    if word.starts_with("--") {
        return Some(match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        });
    }
    let letter = word.strip_prefix('-')?.chars().next().filter(char::is_ascii_alphabetic)?;
    let (name, value) = word.split_at(1 + letter.len_utf8());
    Some((name, (!value.is_empty()).then_some(value)))
}

fn check_value(value: &str, refused: &[&str]) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_=,.:^+-".contains(c);
    if value.is_empty() || !value.chars().all(plain) {
        return Err(format!(
            "{value:?} is empty, or has a character other than letters, digits and _=,.:^+-"
        ));
    }
    let key = |item: &str| item.split('=').next().unwrap_or_default().to_owned();
    match value.split(',').map(key).find(|key| refused.contains(&key.as_str())) {
        Some(key) => Err(format!("{key:?} cannot be set by the user")),
        None => Ok(()),
    }
}

/// All arguments except the device.
pub(crate) fn arguments(request: &MakeFsRequest<'_>) -> Result<Vec<String>, String> {
    let given = parse(request.fs, request.options)?;
    let uuid = request.uuid;
    if uuid.len() != 36 || !uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit()) {
        return Err(format!("{uuid:?} is not a UUID"));
    }
    let mut arguments: Vec<String> = match request.fs {
        FsType::Ext4 => ["-q", "-F", "-U", uuid, "-m", "0"].map(str::to_owned).to_vec(),
        FsType::Xfs => ["-q", "-f", "-K", "-m", &format!("uuid={uuid}")].map(str::to_owned).to_vec(),
        FsType::Btrfs => ["-q", "-f", "-K", "-U", uuid].map(str::to_owned).to_vec(),
    };
    let (merged, rest) = match request.fs {
        FsType::Ext4 => merge_ext4(given),
        FsType::Xfs | FsType::Btrfs => (Vec::new(), given),
    };
    arguments.extend(merged);
    for option in rest {
        arguments.push(option.name.to_owned());
        arguments.extend(option.value);
    }
    Ok(arguments)
}

/// mke2fs uses only the last `-E` and the last `-O`, so our values and the user's are merged.
fn merge_ext4(given: Vec<MkfsOption>) -> (Vec<String>, Vec<MkfsOption>) {
    // No discard, since the device reads as zeroes already. The kernel zeroes inode tables and journal in the background
    // after the first mount.
    let mut extended = "nodiscard,lazy_itable_init=1,lazy_journal_init=1".to_owned();
    let mut features = Vec::new();
    let mut rest = Vec::new();
    for option in given {
        match (option.name, &option.value) {
            ("-E", Some(value)) => extended = format!("{extended},{value}"),
            ("-O", Some(value)) => features.push(value.clone()),
            _ => rest.push(option),
        }
    }
    // With a separate checksum seed, a new UUID on a copy does not require rewriting all metadata.
    if !features.iter().flat_map(|list| list.split(',')).any(|feature| feature == "^metadata_csum") {
        features.insert(0, "metadata_csum_seed".to_owned());
    }
    (vec!["-E".to_owned(), extended, "-O".to_owned(), features.join(",")], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_that_affect_only_the_device_pass_and_others_are_refused() {
        use FsType::{Btrfs, Ext4, Xfs};
        let table = [
            (Ext4, "", true),
            (Ext4, "-b 4096 -i 8192", true),
            (Ext4, "-b4096 -Lname", true),
            (Ext4, "-O ^has_journal,quota -E stride=2,stripe-width=4", true),
            (Ext4, "-m 5", true),
            (Ext4, "-J size=8", true),
            (Ext4, "-J device=UUID=1", false),
            (Ext4, "-J size=8,device=1", false),
            (Ext4, "-O journal_dev", false),
            (Ext4, "-E offset=4096", false),
            (Ext4, "-U 1", false),
            (Ext4, "-F", false),
            (Ext4, "-n", false),
            (Ext4, "-S", false),
            (Ext4, "-c", false),
            (Ext4, "-d /etc", false),
            (Ext4, "-l /etc/passwd", false),
            (Ext4, "-z undo", false),
            (Ext4, "-t ext2", false),
            (Ext4, "/dev/sda", false),
            (Ext4, "8192", false),
            (Ext4, "-", false),
            (Ext4, "--", false),
            (Ext4, "-L /dev/sda", false),
            (Ext4, "-L a;b", false),
            (Ext4, "-L", false),
            (Ext4, "-jb 1024", false),
            (Ext4, "-é", false),
            (Xfs, "-b size=4096 -m reflink=1,bigtime=1 -i size=1024 -L name", true),
            (Xfs, "-m crc=0", false),
            (Xfs, "-d su=64k,sw=4", false),
            (Xfs, "-l su=64k", false),
            (Xfs, "-l size=64m -n ftype=1 -s size=4096 -K", true),
            (Xfs, "-m uuid=1", false),
            (Xfs, "-m reflink=1,uuid=1", false),
            (Xfs, "-d file", false),
            (Xfs, "-d name=x", false),
            (Xfs, "-d agcount=2,size=1g", false),
            (Xfs, "-d agcount=2", true),
            (Xfs, "-l logdev=x", false),
            (Xfs, "-r rtdev=x", false),
            (Xfs, "-c options=x", false),
            (Xfs, "-p proto", false),
            (Xfs, "-N", false),
            (Xfs, "-f", false),
            (Btrfs, "-n 16k -s 4096 --csum=xxhash -O no-holes", true),
            (Btrfs, "--csum xxhash -M", true),
            (Btrfs, "--uuid=1", false),
            (Btrfs, "-U 1", false),
            (Btrfs, "-r dir", false),
            (Btrfs, "--rootdir=dir", false),
            (Btrfs, "-b 1g", false),
            (Btrfs, "-f", false),
            (Btrfs, "--mixed=1", false),
        ];
        for (fs, options, passes) in table {
            let checked = check_mkfs_options(fs, &words(options));
            assert_eq!(checked.is_ok(), passes, "{fs} {options}: {checked:?}");
        }
        for value in ["", "a b", "a\nb", "a\0b", "/a", "é"] {
            let options = ["-L".to_owned(), value.to_owned()];
            assert!(check_mkfs_options(Ext4, &options).is_err(), "{value:?}");
        }
    }

    #[test]
    fn ext4_extended_options_and_features_are_merged() {
        let options = words("-O quota -E stride=2 -b 4096 -O ^64bit");
        let uuid = "6f0b1c3e-2d4a-4b5c-8d6e-7f8091a2b3c4";
        let request = MakeFsRequest { fs: FsType::Ext4, uuid, options: &options };
        let expected = format!(
            "-q -F -U {uuid} -m 0 -E nodiscard,lazy_itable_init=1,lazy_journal_init=1,stride=2 \
             -O metadata_csum_seed,quota,^64bit -b 4096"
        );
        assert_eq!(arguments(&request), Ok(words(&expected)));
        let options = words("-O ^metadata_csum");
        let request = MakeFsRequest { options: &options, ..request };
        assert!(arguments(&request).is_ok_and(|words| words.ends_with(&["^metadata_csum".to_owned()])));
        assert!(arguments(&MakeFsRequest { uuid: "-n", ..request }).is_err());
    }
}
