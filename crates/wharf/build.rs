//! Links the release binary at a fixed address.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A position-independent binary makes the loader write 65,000 relocations into 2 MiB of tables at each start.
    // Those pages then stay private to the process for its whole lifetime, whatever command it runs.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
