//! A container's log in the CRI format: `<time> <stdout|stderr> <F|P> <text>` for each line, where `P` means that the
//! line continues in the next entry.

pub(crate) mod file;
pub(crate) mod reader;

use crate::spec::{LogOptions, LogStream};

/// Lines are split at this size, as container runtimes do.
const PIECE: usize = 16 * 1024;
/// Width of timestamps with nanoseconds: they compare as text.
const TIME: usize = "2026-01-01T00:00:00.000000000Z".len();

/// A timestamp in the log's format.
pub(crate) fn time(at: jiff::Timestamp) -> String {
    format!("{at:.9}")
}

/// Splits the output of one stream into log lines.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: LogStream,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl Lines {
    /// A splitter for this stream.
    pub(crate) fn new(stream: LogStream) -> Self {
        Self { stream, rest: Vec::new() }
    }

    /// Appends complete lines in `bytes`, and complete pieces of long ones, to `log`.
    pub(crate) fn write(&mut self, mut bytes: &[u8], time: &str, log: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let space = PIECE - self.rest.len();
            let newline = bytes.iter().take(space + 1).position(|&b| b == b'\n');
            match newline {
                Some(end) => {
                    self.rest.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end + 1..];
                    self.put(b'F', time, log);
                }
                None => {
                    let (now, later) = bytes.split_at(space.min(bytes.len()));
                    self.rest.extend_from_slice(now);
                    bytes = later;
                    // Only if more follows: the line may end exactly here.
                    if self.rest.len() == PIECE && !bytes.is_empty() {
                        self.put(b'P', time, log);
                    }
                }
            }
        }
    }

    /// Flushes an incomplete line at the end of the stream.
    pub(crate) fn finish(&mut self, time: &str, log: &mut Vec<u8>) {
        if !self.rest.is_empty() {
            self.put(b'P', time, log);
        }
    }

    fn put(&mut self, tag: u8, time: &str, log: &mut Vec<u8>) {
        log.extend_from_slice(time.as_bytes());
        log.push(b' ');
        log.extend_from_slice(self.stream.as_str().as_bytes());
        log.extend_from_slice(&[b' ', tag, b' ']);
        log.append(&mut self.rest);
        log.push(b'\n');
    }
}

/// Formats log lines like `kubectl logs`.
#[derive(Debug)]
pub(crate) struct Printer {
    options: LogOptions,
    since: Option<String>,
    /// Whether the last output ended a line.
    at_start: bool,
    left: u64,
}

impl Printer {
    /// With these options; the reader handles `tail` and `follow`.
    pub(crate) fn new(options: LogOptions) -> Self {
        let since = options.since.and_then(|since| jiff::Timestamp::from_millisecond(since.0).ok()).map(time);
        let left = options.limit_bytes.unwrap_or(u64::MAX);
        Self { options, since, at_start: true, left }
    }

    /// Whether the byte limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Prints one log line, given without its newline, to `out`. Lines in another format are skipped.
    pub(crate) fn print(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(Line { at, stream, partial, text }) = Line::parse(line) else { return };
        let too_old = self.since.as_ref().is_some_and(|since| at < since.as_bytes());
        if too_old || self.options.stream.is_some_and(|wanted| wanted.as_str().as_bytes() != stream) {
            return;
        }
        if self.options.timestamps && self.at_start {
            self.put(at, out);
            self.put(b" ", out);
        }
        self.put(text, out);
        if !partial {
            self.put(b"\n", out);
        }
        self.at_start = !partial;
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend_from_slice(&bytes[..length]);
        self.left -= length as u64;
    }
}

/// A line of a log.
struct Line<'a> {
    at: &'a [u8],
    stream: &'a [u8],
    /// It continues in the next entry.
    partial: bool,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let (at, rest) = line.split_at_checked(TIME)?;
        let rest = rest.strip_prefix(b" ")?;
        let (stream, rest) = rest.split_at_checked(LogStream::Stdout.as_str().len())?;
        match rest {
            [b' ', tag @ (b'F' | b'P'), b' ', text @ ..] => {
                Some(Self { at, stream, partial: *tag == b'P', text })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-01-01T00:00:01.000000000Z";

    fn written(writes: &[&str]) -> String {
        let (mut lines, mut log) = (Lines::new(LogStream::Stdout), Vec::new());
        writes.iter().for_each(|text| lines.write(text.as_bytes(), AT, &mut log));
        lines.finish(AT, &mut log);
        String::from_utf8(log).unwrap().replace(&format!("{AT} stdout "), "")
    }

    #[test]
    fn lines_are_split_like_other_container_runtimes() {
        let long = "x".repeat(PIECE);
        let very_long = format!("{long}{long}y\n");
        let cases: [(&str, Vec<&str>, String); 8] = [
            ("nothing", vec![], String::new()),
            ("a line", vec!["one\n"], "F one\n".to_owned()),
            ("in two writes", vec!["on", "e\ntwo\n"], "F one\nF two\n".to_owned()),
            ("an empty line", vec!["\n\n"], "F \nF \n".to_owned()),
            ("no newline at the end", vec!["one\ntwo"], "F one\nP two\n".to_owned()),
            ("just as long as a piece", vec![&long, "\n"], format!("F {long}\n")),
            ("longer than a piece", vec![&long, "y\n"], format!("P {long}\nF y\n")),
            ("longer, at once", vec![&very_long], format!("P {long}\nP {long}\nF y\n")),
        ];
        for (case, writes, expected) in cases {
            assert!(written(&writes) == expected, "{case}");
        }
    }

    fn printed(options: LogOptions) -> String {
        let log = "2026-01-01T00:00:01.000000000Z stdout F one\n2026-01-01T00:00:02.000000000Z stderr P tw\n\
                   2026-01-01T00:00:02.500000000Z stderr F o\nnot a line of a log\n\
                   2026-01-01T00:00:03.000000000Z stdout P end\n";
        let (mut printer, mut out) = (Printer::new(options), Vec::new());
        log.lines().for_each(|line| printer.print(line.as_bytes(), &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn printer_applies_log_options() {
        let since =
            |ms| Some(wharf_model::Time(jiff::Timestamp::constant(1_767_225_600, 0).as_millisecond() + ms));
        let with = LogOptions::default;
        let cases: [(&str, LogOptions, &str); 7] = [
            ("all of it", with(), "one\ntwo\nend"),
            ("since", LogOptions { since: since(2000), ..with() }, "two\nend"),
            ("since, later", LogOptions { since: since(2001), ..with() }, "o\nend"),
            ("one stream", LogOptions { stream: Some(LogStream::Stderr), ..with() }, "two\n"),
            ("so many bytes", LogOptions { limit_bytes: Some(5), ..with() }, "one\nt"),
            ("no bytes", LogOptions { limit_bytes: Some(0), ..with() }, ""),
            (
                "a time before each line, not before each piece",
                LogOptions { timestamps: true, ..with() },
                "2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.000000000Z two\n\
                 2026-01-01T00:00:03.000000000Z end",
            ),
        ];
        for (case, options, expected) in cases {
            assert_eq!(printed(options), expected, "{case}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        /// However a program splits its writes, the output is reproduced exactly.
        #[test]
        fn log_round_trips(runs in proptest::collection::vec((0..3_usize, 0..2 * PIECE), 0..8)) {
            // Each write is a run of one kind: text, line ends, or text with line ends.
            let texts = ["x", "\n", "y\n"];
            let writes: Vec<String> =
                runs.iter().map(|&(kind, length)| if kind == 0 { "x".repeat(length) } else { texts[kind].repeat(length % 3) }).collect();
            let (mut lines, mut log) = (Lines::new(LogStream::Stdout), Vec::new());
            writes.iter().for_each(|text| lines.write(text.as_bytes(), AT, &mut log));
            lines.finish(AT, &mut log);
            let (mut printer, mut out) = (Printer::new(LogOptions::default()), Vec::new());
            log.split(|&b| b == b'\n').for_each(|line| printer.print(line, &mut out));
            proptest::prop_assert!(out == writes.concat().into_bytes());
        }
    }

    #[test]
    fn timestamps_have_fixed_width() {
        assert_eq!(time(jiff::Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(time(jiff::Timestamp::now()).len(), TIME);
    }
}
