//! Splits a stream of bytes into lines; buffers at most one line of bounded length.

/// etcd accepts 1.5 MiB per object; a CRD's conversion may produce a larger one.
pub(crate) const MAX_LINE: usize = 8 << 20;

/// A line of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Without its newline.
    Whole(Vec<u8>),
    /// Longer than allowed; its content is discarded.
    TooLong,
}

#[derive(Debug, Default)]
pub(crate) struct Lines {
    part: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Adds bytes and returns the lines that they complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.part);
            match std::mem::take(&mut self.skipping) {
                true => lines.push(Line::TooLong),
                false if line.is_empty() => {}
                false => lines.push(Line::Whole(line)),
            }
        }
        self.extend(bytes);
        lines
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipping || self.part.len() + bytes.len() > MAX_LINE {
            self.skipping = true;
            self.part = Vec::new();
        } else {
            self.part.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn line_length_is_bounded() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(&vec![b'x'; MAX_LINE]), []);
        assert_eq!(lines.push(b"x"), []);
        assert!(lines.part.capacity() == 0);
        assert_eq!(lines.push(b"more\nnext\n"), [Line::TooLong, Line::Whole(b"next".to_vec())]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_chunk_boundaries(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0_usize..60, 0..8)) {
            let mut whole = Lines::default();
            let expected = whole.push(text.as_bytes());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut parts = Lines::default();
            let mut got = Vec::new();
            for pair in cuts.windows(2) {
                got.extend(parts.push(&text.as_bytes()[pair[0]..pair[1]]));
            }
            prop_assert_eq!(got, expected);
        }
    }
}
