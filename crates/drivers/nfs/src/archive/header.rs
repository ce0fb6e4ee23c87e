//! The blocks of a tar archive: ustar headers and PAX records. No I/O.

/// The size of a block.
pub(super) const BLOCK: usize = 512;
/// The largest number in a field of eleven octal digits: 8 GiB - 1.
const OCTAL_11: u64 = 0o77_777_777_777;
/// The largest number in a field of seven octal digits.
const OCTAL_7: u64 = 0o7_777_777;

/// A header block.
pub(super) type Block = [u8; BLOCK];

/// The fields of a header block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(super) kind: u8,
    pub(super) link: Vec<u8>,
}

/// Why a block is not a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("a header's checksum is wrong")]
    Checksum,
    #[error("the field {0} of a header is not a number")]
    Number(&'static str),
    #[error("a PAX record is malformed")]
    Pax,
}

impl Header {
    /// Encodes a ustar header. Values that do not fit are left to PAX records: see [`fits`].
    pub(super) fn encode(&self) -> Block {
        let mut block = [0; BLOCK];
        put(&mut block[0..100], &self.name);
        put(&mut block[100..108], format!("{:07o}", self.mode).as_bytes());
        put(&mut block[108..116], format!("{:07o}", self.uid.min(OCTAL_7)).as_bytes());
        put(&mut block[116..124], format!("{:07o}", self.gid.min(OCTAL_7)).as_bytes());
        put(&mut block[124..136], format!("{:011o}", self.size.min(OCTAL_11)).as_bytes());
        let mtime = u64::try_from(self.mtime).unwrap_or(0).min(OCTAL_11);
        put(&mut block[136..148], format!("{mtime:011o}").as_bytes());
        block[156] = self.kind;
        put(&mut block[157..257], &self.link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum = checksum(&block);
        put(&mut block[148..156], format!("{sum:06o}\0 ").as_bytes());
        block
    }

    /// Decodes a header block of any tar variant; `None` for the zero block at the end.
    pub(super) fn decode(block: &Block) -> Result<Option<Self>, HeaderError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if number(&block[148..156]) != Some(i64::from(checksum(block))) {
            return Err(HeaderError::Checksum);
        }
        let field =
            |range: std::ops::Range<usize>, name| number(&block[range]).ok_or(HeaderError::Number(name));
        let unsigned = |range, name| {
            field(range, name).and_then(|value| u64::try_from(value).map_err(|_| HeaderError::Number(name)))
        };
        let is_ustar = &block[257..263] == b"ustar\0";
        let mut name = text(&block[0..100]).to_vec();
        let prefix = text(&block[345..500]);
        // GNU headers (`ustar  `) have other fields there.
        if is_ustar && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        Ok(Some(Self {
            name,
            mode: u32::try_from(unsigned(100..108, "mode")?).map_err(|_| HeaderError::Number("mode"))?,
            uid: unsigned(108..116, "uid")?,
            gid: unsigned(116..124, "gid")?,
            size: unsigned(124..136, "size")?,
            mtime: field(136..148, "mtime")?,
            kind: block[156],
            link: text(&block[157..257]).to_vec(),
        }))
    }
}

/// Whether a header needs a PAX record for its name or link.
pub(super) fn name_fits(name: &[u8]) -> bool {
    name.len() <= 100
}

/// Whether a header needs a PAX record for its owner or group.
pub(super) fn id_fits(id: u64) -> bool {
    id <= OCTAL_7
}

/// Whether a header needs a PAX record for its size.
pub(super) fn size_fits(size: u64) -> bool {
    size <= OCTAL_11
}

fn put(field: &mut [u8], bytes: &[u8]) {
    let length = bytes.len().min(field.len());
    field[..length].copy_from_slice(&bytes[..length]);
}

/// The sum of all bytes, with spaces instead of the checksum itself.
fn checksum(block: &Block) -> u32 {
    let byte = |(index, byte): (usize, &u8)| if (148..156).contains(&index) { 32 } else { u32::from(*byte) };
    block.iter().enumerate().map(byte).sum()
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number in octal digits, or in GNU's base 256.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        // The second bit is the sign.
        let start = i128::from(first & 0x7f) - if first & 0x40 != 0 { 0x80 } else { 0 };
        let value = rest.iter().fold(start, |value, byte| (value << 8) | i128::from(*byte));
        return i64::try_from(value).ok();
    }
    let digits = text(field).trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    i64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok().filter(|value| *value >= 0)
}

/// Appends one PAX record: `length key=value\n`, where the length counts itself.
pub(super) fn push_pax(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend(length.to_string().bytes());
    records.push(b' ');
    records.extend(key);
    records.push(b'=');
    records.extend(value);
    records.push(b'\n');
}

/// Key and value of a PAX record.
pub(super) type PaxRecord = (Vec<u8>, Vec<u8>);

/// Splits PAX records into keys and values.
pub(super) fn parse_pax(mut records: &[u8]) -> Result<Vec<PaxRecord>, HeaderError> {
    let mut parsed = Vec::new();
    while !records.is_empty() {
        let space = records.iter().take(20).position(|byte| *byte == b' ').ok_or(HeaderError::Pax)?;
        let length = std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
        let record = length.and_then(|length| records.get(space + 1..length)).ok_or(HeaderError::Pax)?;
        let record = record.strip_suffix(b"\n").ok_or(HeaderError::Pax)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(HeaderError::Pax)?;
        parsed.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        records = &records[length.ok_or(HeaderError::Pax)?..];
    }
    Ok(parsed)
}

/// A PAX time: seconds with a fraction, which can be negative.
pub(super) fn format_time((seconds, nanoseconds): (i64, u32)) -> String {
    if seconds >= 0 || nanoseconds == 0 {
        return format!("{seconds}.{nanoseconds:09}");
    }
    // -1 s + 0.25 s is -0.75: the sign counts for the fraction too.
    let whole = (seconds + 1).unsigned_abs();
    format!("-{whole}.{:09}", 1_000_000_000 - nanoseconds)
}

/// The inverse of [`format_time`]; `None` if it is not a time.
pub(super) fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = fraction.parse().ok()?;
    match (negative, nanoseconds) {
        (false, _) => Some((seconds, nanoseconds)),
        (true, 0) => Some((-seconds, 0)),
        (true, _) => Some((-seconds - 1, 1_000_000_000 - nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        let table: [(&[u8], Option<i64>); 11] = [
            (b"\x80\0\0\0\0\x2d\xc6\xc0", Some(3_000_000)),
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"0000648\0", None),
            (b"-000001\0", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xff\0\0\0\0\0\0\0\0\0\0\0", None),
        ];
        for (field, expected) in table {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn pax_records_count_their_own_length_and_keep_any_byte() {
        for length in 0..300 {
            let (mut records, value) = (Vec::new(), vec![b'\n'; length]);
            push_pax(&mut records, b"SCHILY.xattr.user.a", &value);
            push_pax(&mut records, b"k", b"=\0");
            let expected = vec![(b"SCHILY.xattr.user.a".to_vec(), value), (b"k".to_vec(), b"=\0".to_vec())];
            assert_eq!(parse_pax(&records), Ok(expected), "{length}");
        }
        for bad in ["4 a=\n", "99 a=b\n", "x", "6 a=b ", "6 abc\n", "0 a=b\n", "18446744073709551616 a=b\n"] {
            assert_eq!(parse_pax(bad.as_bytes()), Err(HeaderError::Pax), "{bad}");
        }
    }

    #[test]
    fn times_before_1970_have_a_negative_fraction() {
        let table = [
            ((0, 0), "0.000000000"),
            ((1, 5), "1.000000005"),
            ((-1, 250_000_000), "-0.750000000"),
            ((-2, 0), "-2.000000000"),
            ((-2, 1), "-1.999999999"),
        ];
        for (time, text) in table {
            assert_eq!(format_time(time), text);
            assert_eq!(parse_time(text.as_bytes()), Some(time));
        }
        assert_eq!(parse_time(b"1700000000"), Some((1_700_000_000, 0)));
        assert_eq!(parse_time(b"1.12345678999"), Some((1, 123_456_789)));
        for bad in ["", "-", "1.x", "+1", "1e3", "99999999999999999999"] {
            assert_eq!(parse_time(bad.as_bytes()), None, "{bad}");
        }
    }
}
