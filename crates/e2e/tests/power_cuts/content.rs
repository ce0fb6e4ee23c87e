//! The content of a volume: a counter in the file `count`, or in the first block of a raw block volume. Each write is
//! durable before it returns.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

const BLOCK: usize = 4096;

pub(crate) fn write(target: &Path, fs_type: &str, count: u64) {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(&count.to_le_bytes());
    if fs_type.is_empty() {
        let mut device = File::options().write(true).open(target).unwrap();
        device.write_all(&block).unwrap();
        device.sync_all().unwrap();
        return;
    }
    let (new, file) = (target.join("count.new"), target.join("count"));
    let mut out = File::create(&new).unwrap();
    out.write_all(&block).unwrap();
    out.sync_all().unwrap();
    fs::rename(new, file).unwrap();
    File::open(target).unwrap().sync_all().unwrap();
}

/// The counter; 0 if it was never written.
pub(crate) fn read(target: &Path, fs_type: &str) -> u64 {
    let file = if fs_type.is_empty() { target.to_owned() } else { target.join("count") };
    let mut block = [0; BLOCK];
    match File::open(file) {
        Ok(mut file) => file.read_exact(&mut block).unwrap(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return 0,
        Err(error) => panic!("{}: {error}", target.display()),
    }
    u64::from_le_bytes(block[..8].try_into().unwrap())
}
