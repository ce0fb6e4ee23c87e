//! Compares the tree copier with `cp -a`: 1,000 small files, and one large file. The directory should be on an NFS mount.
//!
//! `copy-bench DIR [SMALL-FILES] [LARGE-MIB]` prints the median of three rounds, and the ratio (below 1: the copier is faster).
//! `cp -a` does not sync; the copier does. So `sync -f` runs after `cp -a`, and its time counts.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use wharf_driver_nfs::copy::{CopyOptions, copy_tree};

const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: copy-bench DIR [SMALL-FILES] [LARGE-MIB]")?;
    let number = |text: Option<String>, default| text.map_or(Ok(default), |text| text.parse::<usize>());
    let (small, large) = (number(arguments.next(), 1000)?, number(arguments.next(), 1024)?);
    let dir = tempfile::tempdir_in(dir)?;
    let source = dir.path().join("small");
    for i in 0..small {
        let sub = source.join(format!("{}", i / 100));
        fs::create_dir_all(&sub)?;
        fs::write(sub.join(format!("{i}")), vec![b'x'; 100 + 37 * (i % 200)])?;
    }
    measure(&format!("{small} small files"), dir.path(), &source)?;
    let source = dir.path().join("large");
    fs::create_dir_all(&source)?;
    let mut file = File::create(source.join("file"))?;
    for i in 0..large {
        file.write_all(&vec![u8::try_from(i % 251)?; 1 << 20])?;
    }
    file.sync_all()?;
    measure(&format!("one file of {large} MiB"), dir.path(), &source)
}

fn measure(what: &str, dir: &Path, source: &Path) -> Result<(), Box<dyn Error>> {
    let (mut cp, mut own) = (Vec::new(), Vec::new());
    let mut cloned = 0;
    let name = source.file_name().unwrap_or_default().display();
    for round in 0..ROUNDS {
        let target = dir.join(format!("cp-{name}-{round}"));
        cp.push(time(|| {
            run(Command::new("cp").arg("-a").arg(source).arg(&target))?;
            run(Command::new("sync").arg("-f").arg(&target))
        })?);
        let target = dir.join(format!("own-{name}-{round}"));
        fs::create_dir(&target)?;
        own.push(time(|| {
            let (from, to) = (File::open(source)?, File::open(&target)?);
            let go_on = |_| ControlFlow::Continue(());
            cloned = copy_tree(from.as_fd(), to.as_fd(), &CopyOptions::default(), &go_on)?.cloned;
            Ok(())
        })?);
    }
    let (cp, own) = (median(cp), median(own));
    let ratio = own.as_secs_f64() / cp.as_secs_f64();
    println!("{what}: cp -a {cp:.3?}, copier {own:.3?}, ratio {ratio:.2}, {cloned} files cloned");
    Ok(())
}

fn time(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
