//! The runtime's helper program in tests; does nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    wharf_container::run_helper(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
