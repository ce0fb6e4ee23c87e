//! Which paths hold the agent's own credentials. Pods must not see them: containers of root read the files of the host, and
//! with a node's credentials they would be the node.
//!
//! Start at [`hidden_paths`]; [`credential_paths`] has the rules.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use kube::config::Kubeconfig;

/// Where a pod finds its service account, in which the agent's client looks first.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Directories whose files are programs and settings that pods need, or anybody's.
const SYSTEM: [&str; 13] = [
    "/bin",
    "/dev",
    "/gnu",
    "/lib",
    "/lib64",
    "/nix",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/etc/pki",
    "/etc/ssl",
    "/etc/ca-certificates",
];
/// Like [`SYSTEM`], but directories in them belong to somebody. So do those of the root directory.
const SYSTEM_EXACTLY: [&str; 9] = [
    "/etc/default",
    "/etc/sysconfig",
    "/run/user",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];

/// The paths to hide from pods: what the client uses that `Cluster::connect` makes with this kubeconfig. They are free of
/// symlinks.
pub(super) fn hidden_paths(kubeconfig: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let mut files = BTreeSet::new();
    let mut hidden = BTreeSet::new();
    match kubeconfig {
        Some(path) => {
            let config = Kubeconfig::read_from(path);
            let config = config.with_context(|| format!("failed to read kubeconfig {}", path.display()))?;
            files.extend(credential_paths(&config, &std::path::absolute(path)?));
        }
        None => {
            hidden.extend(std::fs::canonicalize(SERVICE_ACCOUNT).ok());
            let list = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty());
            let defaults = match (&list, &home) {
                (Some(list), _) => std::env::split_paths(list).collect(),
                (None, Some(home)) => vec![home.join(".kube/config")],
                (None, None) => Vec::new(),
            };
            for path in defaults.iter().filter(|path| path.exists()) {
                // The client cannot use a file that cannot be read, either.
                let config = Kubeconfig::read_from(path).unwrap_or_default();
                files.extend(credential_paths(&config, &std::path::absolute(path)?));
            }
        }
    }
    let home = home.and_then(|home| home.canonicalize().ok());
    for file in files {
        hidden.extend(without_symlinks(&file).into_iter().map(|file| place(file, home.as_deref())));
    }
    Ok(hidden.into_iter().collect())
}

/// The file that has this name, and the one that it leads to: the renewal of a certificate replaces either. A file that does
/// not exist yet is hidden, too.
fn without_symlinks(file: &Path) -> BTreeSet<PathBuf> {
    let named = match (file.parent().map(Path::canonicalize), file.file_name()) {
        (Some(Ok(directory)), Some(name)) => directory.join(name),
        _ => normalized(file),
    };
    [Some(named), file.canonicalize().ok()].into_iter().flatten().collect()
}

/// The path without `..`, whose directory does not exist.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            component => normal.push(component),
        }
    }
    normal
}

/// The files with credentials: the kubeconfig at this absolute path and those that it names, for any of its users.
/// Certificate authorities are no secret.
fn credential_paths(config: &Kubeconfig, path: &Path) -> BTreeSet<PathBuf> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let users = config.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let named = users.flat_map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let named = named.flatten().filter(|name| !name.is_empty()).map(|name| directory.join(name));
    named.chain([path.to_owned()]).collect()
}

/// What to hide for a file: its directory, so that a file renamed to its name is hidden, too; or only the file if other files
/// of the directory are none of the agent's.
fn place(file: PathBuf, home: Option<&Path>) -> PathBuf {
    let Some(directory) = file.parent() else { return file };
    let depth = directory.components().count();
    let shared = depth <= 2
        || SYSTEM.iter().any(|system| directory.starts_with(system))
        || SYSTEM_EXACTLY.iter().any(|system| directory == Path::new(system))
        // /home/NAME and /run/user/ID
        || directory.parent().is_some_and(|above| above == Path::new("/home") || above == Path::new("/run/user"))
        || home.is_some_and(|home| home.starts_with(directory));
    if shared { file } else { directory.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> BTreeSet<PathBuf> {
        texts.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn files_of_all_users_are_credentials() {
        let cases: [(&str, &str, &[&str]); 4] = [
            ("only embedded data", "users: [{name: a, user: {client-key-data: eA==, token: t}}]", &[]),
            (
                "files, relative to the kubeconfig",
                "clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: ca.crt}}]\n\
                 users: [{name: a, user: {client-certificate: pki/a.crt, client-key: ../a.key}}]",
                &["/k/n/pki/a.crt", "/k/n/../a.key"],
            ),
            (
                "of any user",
                "current-context: x\nusers: [{name: a, user: {tokenFile: /t/a}}, {name: b, user: {tokenFile: /t/b}}]",
                &["/t/a", "/t/b"],
            ),
            ("empty names", "users: [{name: a, user: {client-key: '', tokenFile: ''}}, {name: b}]", &[]),
        ];
        for (case, text, expected) in cases {
            let config = Kubeconfig::from_yaml(text).unwrap();
            let mut expected = paths(expected);
            expected.insert("/k/n/worker.conf".into());
            assert_eq!(credential_paths(&config, Path::new("/k/n/worker.conf")), expected, "{case}");
        }
    }

    #[test]
    fn directory_is_hidden_unless_it_has_other_files() {
        for (file, whole) in [
            ("/etc/kubernetes/kubelet.conf", true),
            ("/etc/kubernetes/pki/a.key", true),
            ("/var/lib/wharf-node/worker.conf", true),
            ("/home/me/.kube/config", true),
            ("/root/.kube/config", true),
            ("/srv/cluster/worker.conf", true),
            ("/worker.conf", false),
            ("/etc/worker.conf", false),
            ("/root/worker.conf", false),
            ("/tmp/worker.conf", false),
            ("/var/lib/worker.conf", false),
            ("/var/run/worker.conf", false),
            ("/home/worker.conf", false),
            ("/home/me/worker.conf", false),
            ("/usr/local/etc/worker.conf", false),
            ("/etc/ssl/private/worker.key", false),
            ("/data/users/me/worker.conf", false),
            ("/data/users/worker.conf", false),
            ("/run/user/0/worker.conf", false),
        ] {
            let file = Path::new(file);
            let expected = if whole { file.parent().unwrap() } else { file };
            assert_eq!(
                place(file.to_owned(), Some(Path::new("/data/users/me"))),
                expected,
                "{}",
                file.display()
            );
        }
    }

    /// On real files: also what a link leads to.
    #[test]
    fn paths_of_a_kubeconfig_are_hidden_without_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for name in ["conf", "pki", "real"] {
            std::fs::create_dir(dir.join(name)).unwrap();
        }
        std::fs::write(dir.join("real/2026.pem"), "").unwrap();
        std::os::unix::fs::symlink("../real/2026.pem", dir.join("pki/current.pem")).unwrap();
        std::os::unix::fs::symlink(dir.join("conf"), dir.join("link")).unwrap();
        let text = "users: [{name: a, user: {client-key: ../pki/current.pem, tokenFile: ../later/token}}]";
        std::fs::write(dir.join("conf/worker.conf"), text).unwrap();
        let hidden = hidden_paths(Some(&dir.join("link/worker.conf"))).unwrap();
        for name in ["conf", "pki", "real", "later"] {
            assert!(hidden.contains(&dir.join(name)), "{name}: {hidden:?}");
        }
        let error = hidden_paths(Some(&dir.join("missing"))).unwrap_err();
        assert!(format!("{error:#}").contains("missing"), "{error:#}");
    }
}
