//! A container's log, in the format that kubelet's container runtimes write: for each line
//! `<time> <stdout|stderr> <F|P> <text>`, where `P` says that the line goes on in the next one.

pub(super) mod file;
pub(super) mod reader;

use super::spec::{LogOptions, LogStream};

/// A line is cut in pieces of this size, as container runtimes do.
const PIECE: usize = 16 * 1024;
/// The width of our times, up to the nanosecond: they can be compared as text.
const TIME: usize = "2026-01-01T00:00:00.000000000Z".len();

/// The time as it stands in logs.
pub(super) fn time(at: jiff::Timestamp) -> String {
    format!("{at:.9}")
}

/// Makes lines of what a program writes to one stream.
#[derive(Debug)]
pub(super) struct Lines {
    stream: LogStream,
    /// The beginning of a line that has not ended.
    rest: Vec<u8>,
}

impl Lines {
    /// Nothing was written yet.
    pub(super) fn new(stream: LogStream) -> Self {
        Self { stream, rest: Vec::new() }
    }

    /// The program wrote `bytes`; whole lines, and whole pieces of long ones, are appended to `log`.
    pub(super) fn write(&mut self, mut bytes: &[u8], time: &str, log: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = PIECE - self.rest.len();
            let newline = bytes.iter().take(room + 1).position(|&b| b == b'\n');
            match newline {
                Some(end) => {
                    self.rest.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end + 1..];
                    self.put(b'F', time, log);
                }
                None => {
                    let (now, later) = bytes.split_at(room.min(bytes.len()));
                    self.rest.extend_from_slice(now);
                    bytes = later;
                    // Only if more is there: the line may end right here.
                    if self.rest.len() == PIECE && !bytes.is_empty() {
                        self.put(b'P', time, log);
                    }
                }
            }
        }
    }

    /// The program writes no more.
    pub(super) fn finish(&mut self, time: &str, log: &mut Vec<u8>) {
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

/// Makes of a log what `kubectl logs` prints.
#[derive(Debug)]
pub(super) struct Printer {
    options: LogOptions,
    since: Option<String>,
    /// Whether what was printed last ended a line.
    at_start: bool,
    left: u64,
}

impl Printer {
    /// With these options; `tail` and `follow` are the reader's.
    pub(super) fn new(options: LogOptions) -> Self {
        let since = options.since.and_then(|since| jiff::Timestamp::from_millisecond(since.0).ok()).map(time);
        let left = options.limit_bytes.unwrap_or(u64::MAX);
        Self { options, since, at_start: true, left }
    }

    /// Nothing more can be printed.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Prints one line of the log, given without its newline, to `out`. A line that is not one of ours is left out.
    pub(super) fn print(&mut self, line: &[u8], out: &mut Vec<u8>) {
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
    /// It goes on in the next one.
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
    fn lines_as_container_runtimes_write_them() {
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
    fn what_kubectl_prints_of_a_log() {
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
        /// However a program cuts what it writes, it comes out again as it was.
        #[test]
        fn what_goes_in_comes_out(runs in proptest::collection::vec((0..3_usize, 0..2 * PIECE), 0..8)) {
            // Each write is a run of one kind: text, or an end of a line, or text that ends one.
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
    fn times_have_one_width() {
        assert_eq!(time(jiff::Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(time(jiff::Timestamp::now()).len(), TIME);
    }
}
