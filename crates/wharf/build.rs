//! Links what ships at a fixed address.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Else the loader writes 65,000 addresses into 2 MiB of tables at each start, and those pages are the process's own
    // for ever after, whatever it was started for.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
