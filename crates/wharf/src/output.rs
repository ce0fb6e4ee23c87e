//! Output of commands: a report that renders as a table for people or as JSON for programs.
//!
//! JSON keeps the field names of the CSI specification and exact numbers. Only tables print human-readable sizes.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::Value;

use crate::size::human_size;

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people.
    Table,
    /// One JSON document, for programs.
    Json,
}

/// The result of a command in both formats.
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
        debug_assert!(
            self.header.is_empty() || self.header.len() == N,
            "number of cells differs from number of columns"
        );
        self.rows.push(cells.to_vec());
    }

    /// Two spaces between columns; the last column is not padded.
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
    /// A list as JSON and as a table.
    pub(crate) fn list(json: Value, table: Table) -> Self {
        Self { json, tables: vec![table] }
    }

    /// Several lists in one JSON document; their tables are printed below each other.
    pub(crate) fn lists(json: Value, tables: Vec<Table>) -> Self {
        Self { json, tables }
    }

    /// One object; as a table it has one field per line.
    pub(crate) fn object(json: Value) -> Self {
        let mut table = Table::default();
        fields("", &json, &mut table);
        Self::list(json, table)
    }

    /// A confirmation without data: a sentence, or an empty JSON object.
    pub(crate) fn done(sentence: String) -> Self {
        let mut table = Table::default();
        table.row([sentence]);
        Self::list(Value::Object(serde_json::Map::new()), table)
    }

    /// The full text. It ends in a newline unless it is empty.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Table => self.tables.iter().map(Table::render).collect::<Vec<_>>().join("\n"),
            Format::Json => format!("{:#}\n", self.json),
        }
    }

    /// Prints the report. A closed pipe (`| head`) is not an error.
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
            let values: Vec<String> = items.iter().map(|item| scalar("", item)).collect();
            table.row([name.to_owned(), or_dash(values.join(", "))]);
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

/// Whether a field of this name counts bytes in the CSI specification.
fn is_bytes(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.ends_with("_bytes")
        || ["available_capacity", "maximum_volume_size", "minimum_volume_size", "byte_offset"].contains(&last)
}

/// Replaces empty text by a dash: an empty cell would shift the columns for tools such as `awk`.
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
    fn empty_list_has_a_header() {
        let report = Report::list(json!({"entries": []}), Table::new(&["ID", "SIZE"]));
        assert_eq!(report.render(Format::Table), "ID  SIZE\n");
        assert_eq!(report.render(Format::Json), "{\n  \"entries\": []\n}\n");
    }

    #[test]
    fn object_is_rendered_field_by_field() {
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
    fn several_tables_are_separated_by_an_empty_line() {
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
