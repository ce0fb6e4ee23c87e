use std::sync::Mutex;

use wharf_linux::{MountTable, PathKind, Result};

use super::*;
use crate::worker::WorkerErrorKind as Kind;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn facts() -> ServerFacts {
    ServerFacts {
        address: "192.0.2.1".parse().unwrap(),
        client_address: Some("192.0.2.9".parse().unwrap()),
        known_version: None,
        daemons: Daemons { statd: Some(true), gssd: Some(true), tlshd: Some(true) },
    }
}

fn planned(options: &str, facts: &ServerFacts) -> std::result::Result<MountPlan, MountFailure> {
    let parsed = ParsedOptions::parse(&words(options))?;
    plan(source("nas", "/x"), &parsed, false, facts)
}

#[test]
fn source_has_brackets_for_ipv6_only() {
    for (server, path, expected) in [
        ("nas", "/a/b", "nas:/a/b"),
        ("nas", "a/b/", "nas:/a/b"),
        ("nas", "/", "nas:/"),
        ("192.0.2.1", "/a", "192.0.2.1:/a"),
        ("2001:db8::1", "/a", "[2001:db8::1]:/a"),
    ] {
        assert_eq!(source(server, path), expected);
    }
}

#[test]
fn versions_and_options_are_those_of_mount_nfs() {
    for (options, versions, first) in [
        ("", "4.2 4.1 4.0 3", "vers=4.2,addr=192.0.2.1"),
        ("vers=4", "4.2 4.1 4.0", "vers=4.2,addr=192.0.2.1"),
        ("nfsvers=4.1,hard", "4.1", "vers=4.1,addr=192.0.2.1,hard"),
        ("v3 nolock", "3", "vers=3,addr=192.0.2.1,nolock"),
        ("vers=4,minorversion=1", "4.1", "vers=4.1,addr=192.0.2.1"),
        ("vers=4.0", "4.0", "vers=4.0,addr=192.0.2.1,clientaddr=192.0.2.9"),
        ("vers=4.0 clientaddr=10.0.0.1", "4.0", "vers=4.0,addr=192.0.2.1,clientaddr=10.0.0.1"),
        ("vers=4.2 bg,retry=3,nconnect=4 addr=10.9.9.9", "4.2", "vers=4.2,addr=192.0.2.1,nconnect=4"),
    ] {
        let plan = planned(options, &facts()).unwrap();
        let tried: Vec<&str> = plan.attempts.iter().map(|attempt| attempt.version.as_str()).collect();
        assert_eq!(tried.join(" "), versions, "{options}");
        assert_eq!(plan.attempts[0].options.join(","), first, "{options}");
    }
    for bad in ["vers=5", "vers=", "nfsvers=4.3", "minorversion=9", "port=x", "minorversion=x"] {
        assert_eq!(planned(bad, &facts()).unwrap_err().kind, Kind::Invalid, "{bad}");
    }
    // A version that the options of one volume dictate says nothing about the volumes of others, nor does an export that is
    // missing in NFSv4.
    for (options, mounted, negotiated) in [
        ("", Version::V42, Some(Version::V42)),
        ("vers=4", Version::V40, Some(Version::V40)),
        ("vers=3,nolock", Version::V3, None),
        ("vers=4.0", Version::V40, None),
        ("", Version::V3, None),
    ] {
        assert_eq!(planned(options, &facts()).unwrap().negotiated(mounted), negotiated, "{options}");
    }
    let known = ServerFacts { known_version: Some(Version::V40), ..facts() };
    let tried: Vec<Version> = planned("", &known).unwrap().attempts.iter().map(|a| a.version).collect();
    assert_eq!(tried, [Version::V40, Version::V3]);
    assert_eq!(planned("vers=4.2", &known).unwrap().attempts.len(), 1);
}

/// B25: without statd, NFSv3 locks fail; the error names the option that helps.
#[test]
fn v3_without_statd_offers_nolock() {
    let mut facts = facts();
    facts.daemons.statd = Some(false);
    let refused = planned("vers=3", &facts).unwrap_err();
    assert!(refused.kind == Kind::Precondition && refused.message.contains("nolock"), "{refused}");
    assert!(planned("vers=3,nolock", &facts).is_ok());
    assert!(planned("vers=3,local_lock=all", &facts).is_ok());
    let any = planned("", &facts).unwrap();
    assert!(any.attempts.iter().all(|attempt| attempt.version != Version::V3));
    let failure = MountFailure::from_errno(&any, Version::V40, libc_errno::EPROTONOSUPPORT);
    assert!(failure.message.contains("nolock"), "{failure}");
    // Not seen is not absent.
    facts.daemons.statd = None;
    assert!(planned("vers=3", &facts).is_ok());
}

/// B29: without the helper the kernel would wait until the deadline.
#[test]
fn kerberos_and_tls_without_their_daemons_are_refused() {
    for (options, gssd, tlshd, refused) in [
        ("sec=krb5", Some(false), None, Some("rpc.gssd")),
        ("sec=sys:krb5p", Some(false), None, Some("rpc.gssd")),
        ("sec=krb5i", Some(true), None, None),
        ("sec=krb5i", None, None, None),
        ("sec=sys", Some(false), Some(false), None),
        ("xprtsec=tls", None, Some(false), Some("tlshd")),
        ("xprtsec=mtls", None, Some(false), Some("tlshd")),
        ("xprtsec=none", None, Some(false), None),
        ("xprtsec=mtls", None, None, None),
    ] {
        let mut facts = facts();
        (facts.daemons.gssd, facts.daemons.tlshd) = (gssd, tlshd);
        let failure = planned(options, &facts).err();
        assert_eq!(failure.is_some(), refused.is_some(), "{options}");
        if let (Some(failure), Some(word)) = (failure, refused) {
            assert!(failure.kind == Kind::Precondition && failure.message.contains(word), "{failure}");
        }
    }
}

#[test]
fn controller_mount_neither_blocks_nor_caches() {
    let options = controller_options(&words("hard,timeo=600,vers=4.1 sec=krb5 noatime,ro,acdirmin=30"));
    assert_eq!(
        options.join(","),
        "vers=4.1,sec=krb5,noatime,softerr,timeo=50,retrans=2,lookupcache=none,acdirmin=0,acdirmax=0,nosuid,nodev,noexec"
    );
}

#[test]
fn probe_is_skipped_for_transports_without_tcp() {
    for (options, no_probe, only_v6, port) in [
        ("", false, false, 2049),
        ("proto=tcp6,port=12049", false, true, 12049),
        ("proto=rdma,port=20049", true, false, 20049),
        ("proto=udp6", true, true, 2049),
        ("udp,tcp", false, false, 2049),
        ("port=0", false, false, 2049),
    ] {
        let parsed = ParsedOptions::parse(&words(options)).unwrap();
        assert_eq!((parsed.no_probe, parsed.only_v6, parsed.port), (no_probe, only_v6, port), "{options}");
    }
}

/// A kernel whose mount calls fail with the given errors, in order; 0 is success.
struct Fails(Mutex<Vec<i32>>);

impl Mounts for Fails {
    fn mount_table(&self) -> Result<MountTable> {
        Ok(MountTable::default())
    }
    fn mount(&self, request: &MountRequest<'_>) -> Result<()> {
        match self.0.lock().unwrap().remove(0) {
            0 => Ok(()),
            errno => {
                let error = std::io::Error::from_raw_os_error(errno);
                Err(wharf_linux::Error::call("mount", request.target, error))
            }
        }
    }
    fn bind(&self, _: &Path, _: &Path, _: bool) -> Result<()> {
        Ok(())
    }
    fn unmount(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn path_kind(&self, _: &Path) -> Result<Option<PathKind>> {
        Ok(None)
    }
    fn create_target_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn create_target_file(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn remove_target(&self, _: &Path) -> Result<()> {
        Ok(())
    }
}

#[test]
fn errors_decide_about_the_next_version_and_the_code() {
    use libc_errno as e;
    let table: &[(&str, &[i32], std::result::Result<Version, Kind>)] = &[
        ("", &[0], Ok(Version::V42)),
        ("", &[e::EPROTONOSUPPORT, 0], Ok(Version::V41)),
        ("", &[e::EPROTONOSUPPORT, e::EINVAL, 0], Ok(Version::V40)),
        ("", &[e::EPROTONOSUPPORT, e::EPROTONOSUPPORT, e::EPROTONOSUPPORT, 0], Ok(Version::V3)),
        ("", &[e::EPROTONOSUPPORT; 4], Err(Kind::Invalid)),
        ("", &[e::ENOENT, 0], Ok(Version::V3)),
        ("", &[e::ENOENT, e::ECONNREFUSED], Err(Kind::NotFound)),
        ("", &[e::EACCES], Err(Kind::Denied)),
        ("", &[e::ETIMEDOUT], Err(Kind::Unavailable)),
        ("", &[e::ECONNREFUSED], Err(Kind::Unavailable)),
        ("", &[e::ENODEV], Err(Kind::Precondition)),
        ("", &[e::ESTALE], Err(Kind::NotFound)),
        ("", &[77], Err(Kind::Internal)),
        ("vers=4.1", &[e::ENOENT], Err(Kind::NotFound)),
        ("vers=4.1", &[e::EINVAL], Err(Kind::Invalid)),
        ("vers=3", &[e::EACCES], Err(Kind::Denied)),
        ("vers=4", &[e::EPROTONOSUPPORT, e::EPROTONOSUPPORT, 0], Ok(Version::V40)),
    ];
    for (options, errors, expected) in table {
        let plan = planned(options, &facts()).unwrap();
        let kernel = Fails(Mutex::new(errors.to_vec()));
        let result = perform(&kernel, &plan, Path::new("/mnt"));
        assert_eq!(result.clone().map_err(|failure| failure.kind), *expected, "{options} {errors:?}");
        assert!(kernel.0.lock().unwrap().is_empty(), "{options} {errors:?}");
        if let Err(failure) = result {
            assert!(failure.message.contains("nas:/x"), "{failure}");
        }
    }
    let debug = format!("{:?}", planned("password=hunter2", &facts()).unwrap());
    assert!(!debug.contains("hunter2"), "{debug}");
}

/// B22: a mount at the target counts only if it is the right one.
#[test]
fn existing_mount_is_compared_by_source_and_options() {
    const TABLE: &str = "\
40 20 0:50 / /a rw,relatime - nfs4 nas:/x/v1 rw,vers=4.2,hard,proto=tcp,timeo=600,sec=sys,addr=192.0.2.1
41 20 0:51 / /b ro,relatime - nfs [2001:db8::1]:/x rw,vers=3,port=12049,softerr,sec=krb5,addr=2001:db8::1
42 20 0:52 / /c rw - tmpfs nas:/x rw
43 20 0:53 / /d rw - nfs4 nas:/y rw,vers=4.2,proto=rdma,port=20049,addr=192.0.2.1
";
    let table = MountTable::parse(TABLE.as_bytes()).unwrap();
    let at = |path: &str| table.at(Path::new(path)).unwrap();
    let server = |path: &str| server_of(at(path));
    let expected = |server: &str, address: &str, port| {
        Some(SourceServer { server: server.to_owned(), address: Some(address.parse().unwrap()), port })
    };
    assert_eq!(server("/a"), expected("nas", "192.0.2.1", Some(2049)));
    assert_eq!(server("/b"), expected("2001:db8::1", "2001:db8::1", Some(12049)));
    assert_eq!(server("/c"), None);
    assert_eq!(server("/d"), expected("nas", "192.0.2.1", None));
    assert!(same_source("[2001:DB8::01]:/x", "[2001:db8::1]:/x"));
    assert!(same_source("nas:/x/v1", "nas:/x//v1/") && !same_source("nas:/x/v1", "nas:/x/v2"));
    assert!(same_source("[2001:db8::1]:/", "[2001:db8::1]:/") && !same_source("nas:/x", "nas2:/x"));
    for (path, options, read_only, differs) in [
        ("/a", "", false, None),
        ("/a", "hard,vers=4,timeo=50,sec=krb5:sys", false, None),
        ("/a", "", true, Some("read-write")),
        ("/a", "vers=4.1", false, Some("vers=4.2")),
        ("/a", "vers=3", false, Some("vers=4.2")),
        ("/a", "soft", false, Some("with hard")),
        ("/a", "sec=krb5", false, Some("sec=sys")),
        ("/b", "ro", false, None),
        ("/b", "v3,softerr,sec=krb5", true, None),
        ("/b", "", false, Some("read-only")),
    ] {
        let parsed = ParsedOptions::parse(&words(options)).unwrap();
        let found = difference(at(path), &parsed, &words(options), read_only);
        match (&found, differs) {
            (Some(found), Some(word)) => assert!(found.contains(word), "{path} {options}: {found}"),
            (found, differs) => assert_eq!(found.is_some(), differs.is_some(), "{path} {options}"),
        }
    }
}
