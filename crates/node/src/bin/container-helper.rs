//! What the tests give the runtime as its program: it helps containers and does nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    wharf_node::runtime::helper(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
