//! The table.

/// What was measured: a line each, ours against upstream's.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<String>,
}

impl Report {
    /// A measure of both; `better` says whether more is better, and the ratio is then how many times as good ours is.
    pub(crate) fn row(&mut self, what: &str, ours: f64, theirs: Option<f64>, better: Better) {
        let ratio = match (better, theirs) {
            (_, None) => "-".to_owned(),
            (Better::More, Some(theirs)) => shown(ours / theirs),
            (Better::Less, Some(theirs)) => shown(theirs / ours),
        };
        let theirs = theirs.map_or_else(|| "-".to_owned(), shown);
        let row = format!("| {what} | {} | {theirs} | {ratio} |", shown(ours));
        eprintln!("{row}");
        self.rows.push(row);
    }

    pub(crate) fn print(&self) {
        println!("| what | wharf | upstream | times as good |\n|---|---|---|---|");
        for row in &self.rows {
            println!("{row}");
        }
    }
}

/// What is better.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Better {
    More,
    Less,
}

/// Three digits that count.
fn shown(number: f64) -> String {
    match number {
        n if !n.is_finite() => "-".to_owned(),
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}
