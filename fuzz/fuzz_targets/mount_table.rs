//! The mount table (`/proc/self/mountinfo`), which contains paths and sources that users choose.
//!
//! Promise: parsing never panics. A mount that is parsed, formatted as the kernel does it and parsed again is unchanged.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use wharf_fuzz::kernel::escaped;
use wharf_linux::{Mount, MountTable};

fn line(mount: &Mount) -> Option<String> {
    let Mount { device: (major, minor), root, mount_point, options, fs_type, source, super_options } = mount;
    let paths = [root.to_str()?, mount_point.to_str()?].map(escaped);
    let [options, super_options] = [options, super_options].map(|options| escaped(&options.join(",")));
    let (fs_type, source) = (escaped(fs_type), escaped(source));
    Some(format!("1 0 {major}:{minor} {} {options} - {fs_type} {source} {super_options}\n", paths.join(" ")))
}

fuzz_target!(|data: &[u8]| {
    let Ok(table) = MountTable::parse(data) else { return };
    for mount in table.mounts() {
        mount.is_read_only();
        assert!(table.at(&mount.mount_point).is_some());
        assert!(table.of_device(mount.device).count() > 0);
        let _ = table.of_device_node(Path::new(&mount.source)).count();
        let is_empty = |text: &String| text.is_empty();
        let has_empty = [&mount.fs_type, &mount.source].into_iter().any(is_empty)
            || [&mount.options, &mount.super_options].iter().any(|options| options.iter().all(is_empty))
            || [&mount.root, &mount.mount_point].iter().any(|path| path.as_os_str().is_empty());
        if let Some(line) = line(mount).filter(|_| !has_empty) {
            let parsed = MountTable::parse(line.as_bytes()).expect("a line");
            assert_eq!(parsed.mounts(), [mount.clone()], "{line}");
        }
    }
});
