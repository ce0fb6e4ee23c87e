//! Compiles the `.proto` files without protoc, and generates `Debug` for every message that has a secret field, so that
//! no log line, error or failed assertion can print a secret.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use protox::prost_reflect::{FieldDescriptor, MessageDescriptor};

/// Fields that can hold secrets although csi.proto does not mark them. The specification allows passwords of network
/// file systems in mount flags, and Kubernetes puts the tokens of a pod's service account into the volume context.
const SECRET_THOUGH_UNMARKED: [&str; 2] =
    ["csi.v1.VolumeCapability.MountVolume.mount_flags", "csi.v1.NodePublishVolumeRequest.volume_context"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(["csi.proto", "registration.proto"])?;
    // The services that drivers and registrars offer through reflection. The snapshot metadata API is not one of them.
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    compiler.open_files(["snapshotmetadata.proto"])?;

    let mut builder = tonic_prost_build::configure().btree_map(".").build_transport(false);
    let mut debug_impls: BTreeMap<String, String> = BTreeMap::new();
    let pool = compiler.descriptor_pool();
    let csi_secret =
        pool.get_extension_by_name("csi.v1.csi_secret").ok_or("csi.proto has no csi_secret option")?;
    let is_secret = |field: &FieldDescriptor| {
        field.options().get_extension(&csi_secret).as_bool() == Some(true)
            || SECRET_THOUGH_UNMARKED.contains(&field.full_name())
    };
    for message in pool.all_messages().filter(|message| message.fields().any(|field| is_secret(&field))) {
        builder = builder.skip_debug([format!(".{}", message.full_name())]);
        write_debug(debug_impls.entry(message.package_name().to_owned()).or_default(), &message, is_secret)?;
    }
    for (package, impls) in debug_impls {
        fs::write(out.join(format!("{package}.redacted.rs")), impls)?;
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// Writes `Debug` for one message as prost would derive it, except that a secret field shows only its number of entries.
fn write_debug(
    out: &mut String,
    message: &MessageDescriptor,
    is_secret: impl Fn(&FieldDescriptor) -> bool,
) -> Result<(), Box<dyn Error>> {
    let name = rust_path(message);
    writeln!(out, "impl ::core::fmt::Debug for {name} {{")?;
    writeln!(out, "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{")?;
    writeln!(out, "        f.debug_struct({:?})", message.name())?;
    for field in message.fields() {
        let name = field.name();
        if is_secret(&field) {
            writeln!(out, "            .field({name:?}, &crate::redact::Redacted(self.{name}.len()))")?;
        } else {
            writeln!(out, "            .field({name:?}, &self.{name})")?;
        }
    }
    writeln!(out, "            .finish()\n    }}\n}}")?;
    Ok(())
}

/// The Rust path of a message within the generated module: `a.v1.Outer.Inner` is `outer::Inner`.
fn rust_path(message: &MessageDescriptor) -> String {
    match message.parent_message() {
        Some(parent) => format!("{}::{}", snake_case(&rust_path(&parent)), message.name()),
        None => message.name().to_owned(),
    }
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
