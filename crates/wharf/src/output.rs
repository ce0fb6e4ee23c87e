//! What commands print: one report, as a table for people or as JSON for programs.
//!
//! JSON keeps the specification's field names and numbers as they came; only tables make sizes readable.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::Value;

use crate::size::human_size;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people.
    Table,
    /// One JSON document, for programs.
    Json,
}

/// The outcome of a command in both forms.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    json: Value,
    tables: Vec<Table>,
}

/// Rows under a header; a table without a header is a list of fields.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert!(self.header.is_empty() || self.header.len() == N, "as many cells as columns");
        self.rows.push(cells.to_vec());
    }

    /// Two spaces between columns, the last one not padded.
    fn render(&self) -> String {
        let header: Vec<String> = self.header.iter().map(|name| (*name).to_owned()).collect();
        let lines = (!header.is_empty()).then_some(&header).into_iter().chain(&self.rows);
        let mut widths: Vec<usize> = Vec::new();
        for line in lines.clone() {
            widths.resize(widths.len().max(line.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for line in lines {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

impl Report {
    /// A list: its JSON, and the table that people see.
    pub(crate) fn list(json: Value, table: Table) -> Self {
        Self { json, tables: vec![table] }
    }

    /// Several lists in one document; people see their tables one below the other.
    pub(crate) fn lists(json: Value, tables: Vec<Table>) -> Self {
        Self { json, tables }
    }

    /// One object: people see its fields, one a line.
    pub(crate) fn object(json: Value) -> Self {
        let mut table = Table::default();
        fields("", &json, &mut table);
        Self::list(json, table)
    }

    /// Something was done, and there is nothing to show but that.
    pub(crate) fn done(what: String) -> Self {
        let mut table = Table::default();
        table.row([what]);
        Self::list(Value::Object(serde_json::Map::new()), table)
    }

    /// The whole text, ending in a newline unless it is empty.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Table => self.tables.iter().map(Table::render).collect::<Vec<_>>().join("\n"),
            Format::Json => format!("{:#}\n", self.json),
        }
    }

    /// Prints it. A reader that has gone away (`| head`) is not an error.
    pub(crate) fn print(&self, format: Format) -> io::Result<()> {
        match io::stdout().lock().write_all(self.render(format).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// Flattens an object into `name  value` rows: `volume.capacity_bytes  1073741824 (1GiB)`.
fn fields(name: &str, value: &Value, table: &mut Table) {
    match value {
        Value::Object(members) if members.is_empty() && !name.is_empty() => {
            table.row([name.to_owned(), "-".to_owned()]);
        }
        Value::Object(members) => {
            for (key, value) in members {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                fields(&name, value, table);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (i, item) in items.iter().enumerate() {
                fields(&format!("{name}[{i}]"), item, table);
            }
        }
        Value::Array(items) => {
            let words: Vec<String> = items.iter().map(|item| scalar("", item)).collect();
            table.row([name.to_owned(), or_dash(words.join(", "))]);
        }
        plain => table.row([name.to_owned(), scalar(name, plain)]),
    }
}

fn scalar(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => or_dash(text.clone()),
        Value::Number(number) => match number.as_i64() {
            Some(bytes) if is_bytes(name) && bytes.unsigned_abs() >= 1024 => {
                format!("{bytes} ({})", human_size(bytes))
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// The specification's names of fields that count bytes.
fn is_bytes(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.ends_with("_bytes")
        || ["available_capacity", "maximum_volume_size", "minimum_volume_size", "byte_offset"].contains(&last)
}

/// An empty cell would be invisible, and shift the columns for who reads them with `awk`.
pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let mut table = Table::new(&["ID", "SIZE", "NOTE"]);
        table.row(["vol-1".into(), "1GiB".into(), "a".into()]);
        table.row(["vol-longer".into(), "1B".into(), String::new()]);
        let text = Report::list(json!([]), table).render(Format::Table);
        assert_eq!(text, "ID          SIZE  NOTE\nvol-1       1GiB  a\nvol-longer  1B\n");
    }

    #[test]
    fn an_empty_list_still_has_its_header() {
        let report = Report::list(json!({"entries": []}), Table::new(&["ID", "SIZE"]));
        assert_eq!(report.render(Format::Table), "ID  SIZE\n");
        assert_eq!(report.render(Format::Json), "{\n  \"entries\": []\n}\n");
    }

    #[test]
    fn an_object_is_shown_field_by_field() {
        let report = Report::object(json!({
            "volume_id": "v",
            "capacity_bytes": 1_073_741_824i64,
            "volume_context": {},
            "nodes": ["a", "b"],
            "nothing": [],
            "topology": [{"segments": {"zone/x": "z"}}],
            "ready": true,
            "group": null,
        }));
        let text = report.render(Format::Table);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        assert_eq!(line("capacity_bytes").as_deref(), Some("capacity_bytes               1073741824 (1GiB)"));
        assert_eq!(line("nodes").as_deref(), Some("nodes                        a, b"));
        assert_eq!(line("nothing").as_deref(), Some("nothing                      -"));
        assert_eq!(line("topology").as_deref(), Some("topology[0].segments.zone/x  z"));
        assert_eq!(line("volume_context").as_deref(), Some("volume_context               -"));
        assert_eq!(line("ready").as_deref(), Some("ready                        true"));
        assert_eq!(line("group").as_deref(), Some("group                        -"));
    }

    #[test]
    fn several_tables_have_a_line_between_them() {
        let mut first = Table::new(&["A"]);
        first.row(["1".into()]);
        let report = Report::lists(json!({}), vec![first, Table::new(&["B"])]);
        assert_eq!(report.render(Format::Table), "A\n1\n\nB\n");
    }

    #[test]
    fn json_numbers_are_exact() {
        let report = Report::object(json!({"capacity_bytes": i64::MAX}));
        assert_eq!(report.render(Format::Json), format!("{{\n  \"capacity_bytes\": {}\n}}\n", i64::MAX));
    }

    #[test]
    fn done_is_a_sentence_or_an_empty_object() {
        let report = Report::done("volume v deleted".to_owned());
        assert_eq!(report.render(Format::Table), "volume v deleted\n");
        assert_eq!(report.render(Format::Json), "{}\n");
    }
}
