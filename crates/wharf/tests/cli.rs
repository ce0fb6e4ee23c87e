//! The command line: help of every command, exit statuses, stdout and stderr.

use std::process::{Command, Output};

fn wharf(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf"))
        .args(words)
        .env_remove("WHARF_CSI_ENDPOINT")
        .env_remove("RUST_LOG")
        .output()
        .expect("failed to start wharf")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The names under `Commands:` in a help text.
fn subcommands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        // Names are indented by two spaces; continuation lines of descriptions by more.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Runs `--help` for the command at `path` and all of its subcommands. Returns the number of commands.
fn help_of(path: &[&str]) -> usize {
    let output = wharf(&[path, &["--help"]].concat());
    assert_eq!(output.status.code(), Some(0), "{path:?} --help: {}", stderr(&output));
    let help = stdout(&output);
    assert!(help.contains("Usage: wharf"), "{path:?} --help: {help}");
    1 + subcommands(&help).iter().map(|name| help_of(&[path, &[name]].concat())).sum::<usize>()
}

#[test]
fn every_command_has_help() {
    let commands = help_of(&[]);
    assert!(commands >= 45, "only {commands} commands found: the help text was not parsed correctly");
}

#[test]
fn invalid_command_line_exits_with_2_and_prints_to_stderr() {
    for words in [
        &["nonsense"][..],
        &["csi", "--endpoint", "tcp://127.0.0.1:1", "identity", "info"],
        &["csi", "identity", "info"],
        &["csi", "--endpoint", "/x", "volume", "create", "v", "--size", "much"],
        &["csi", "--endpoint", "/x", "--timeout", "0s", "identity", "info"],
        &["csi", "--endpoint", "/x", "volume", "create", "v", "--from-volume", "a", "--from-snapshot", "b"],
        &["driver", "local"],
        &["local", "list"],
    ] {
        let output = wharf(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("error: "), "{words:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{words:?}");
    }
}

#[test]
fn failed_call_exits_with_1_and_prints_its_code() {
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let endpoint = format!("unix://{}/missing.sock", dir.path().display());
    let output = wharf(&["csi", "--endpoint", &endpoint, "--timeout", "2s", "identity", "info"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("UNAVAILABLE: "), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn no_flag_takes_secrets() {
    for words in [&["csi", "--help"][..], &["csi", "volume", "create", "--help"]] {
        let help = stdout(&wharf(words));
        assert!(help.contains("--secrets-file"), "{words:?}");
        assert!(!help.contains("--secret "), "{words:?}");
        assert!(!help.contains("--secrets "), "{words:?}");
    }
}
