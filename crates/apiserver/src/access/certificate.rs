//! Extracts the common name and the organizations from the subject of a client certificate.
//!
//! TLS has verified the certificate, but its bytes come from outside: anything unexpected yields no subject.

/// The subject of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const VERSION: u8 = 0xa0;
/// UTF8String, PrintableString, IA5String: all are read as UTF-8.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// The subject; none if the bytes are not a certificate with exactly one common name.
pub(super) fn subject(der: &[u8]) -> Option<Subject> {
    let mut outer = Der(der);
    let mut certificate = Der(outer.read(SEQUENCE)?);
    let mut signed = Der(certificate.read(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.read_any()?;
    }
    for _serial_algorithm_issuer_validity in 0..4 {
        signed.read_any()?;
    }
    let mut name = Der(signed.read(SEQUENCE)?);
    let mut common_names = Vec::new();
    let mut organizations = Vec::new();
    while !name.0.is_empty() {
        let mut set = Der(name.read(SET)?);
        while !set.0.is_empty() {
            let mut attribute = Der(set.read(SEQUENCE)?);
            let into = match attribute.read(OID)? {
                COMMON_NAME => &mut common_names,
                ORGANIZATION => &mut organizations,
                _ => continue,
            };
            let (tag, value) = attribute.read_any()?;
            if !STRINGS.contains(&tag) {
                return None;
            }
            into.push(std::str::from_utf8(value).ok()?.to_owned());
        }
    }
    match <[String; 1]>::try_from(common_names) {
        Ok([common_name]) if !common_name.is_empty() => Some(Subject { common_name, organizations }),
        _ => None,
    }
}

/// The unread bytes of a DER sequence.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn read_any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // No certificate is longer.
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn read(&mut self, expected: u8) -> Option<&'a [u8]> {
        self.read_any().filter(|(tag, _)| *tag == expected).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate_with(entries: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in entries {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn subject_has_name_and_organizations() {
        let organization = || DnType::OrganizationName;
        let node =
            certificate_with(&[(organization(), "system:nodes"), (DnType::CommonName, "system:node:n1")]);
        let expected =
            Subject { common_name: "system:node:n1".into(), organizations: vec!["system:nodes".into()] };
        assert_eq!(subject(&node), Some(expected));
        let alone = certificate_with(&[(DnType::CommonName, "jane"), (DnType::CountryName, "NO")]);
        assert_eq!(subject(&alone), Some(Subject { common_name: "jane".into(), organizations: vec![] }));
        assert_eq!(subject(&certificate_with(&[(organization(), "system:masters")])), None, "no common name");
        assert_eq!(subject(&certificate_with(&[(DnType::CommonName, "")])), None, "an empty common name");
        for end in 0..node.len() {
            assert_ne!(subject(&node[..end]).map(|subject| subject.common_name), Some(String::new()));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = subject(&bytes);
        }

        #[test]
        fn damaged_certificate_does_not_panic(at in 0..300usize, byte in any::<u8>()) {
            let mut der = certificate_with(&[(DnType::CommonName, "jane")]);
            let at = at % der.len();
            der[at] = byte;
            _ = subject(&der);
        }
    }
}
