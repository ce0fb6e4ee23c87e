//! The container runtime's helper program in this crate's tests; does nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    wharf_container::run_helper(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
