//! Text tables.

use super::Spread;

/// A table with headers and two spaces between columns. It is ASCII if its cells are.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// Number of left-aligned columns; the columns after them are right-aligned.
    words: usize,
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, with the headers of its left-aligned columns (words) and of its right-aligned ones
    /// (numbers).
    pub(crate) fn new(words: &[&str], numbers: &[&str]) -> Table {
        let headers = words.iter().chain(numbers).map(ToString::to_string).collect();
        Table { words: words.len(), headers, rows: Vec::new() }
    }

    /// A table of named statistics, with `places` decimal places.
    pub(crate) fn of_spreads<'a>(
        header: &str,
        places: usize,
        spreads: impl IntoIterator<Item = (&'a str, &'a Spread)>,
    ) -> Table {
        let mut table = Table::new(&[header], &["min", "p50", "mean", "p95", "max", "n"]);
        for (name, s) in spreads {
            let times = [s.min, s.p50, s.mean, s.p95, s.max].map(|x| format!("{x:.places$}"));
            table.row([name.to_string()].into_iter().chain(times).chain([s.n.to_string()]));
        }
        table
    }

    /// Adds a row. Missing cells are empty; cells after the last column are dropped.
    pub(crate) fn row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        row.resize(self.headers.len(), String::new());
        self.rows.push(row);
    }

    /// Renders the table: headers, a rule, rows, each with a line break.
    pub(crate) fn render(&self) -> String {
        let rows = || [&self.headers].into_iter().chain(&self.rows);
        let width = |at: usize| rows().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.headers.len()).map(width).collect();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        let mut text = String::new();
        for row in [&self.headers, &rule].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                line +=
                    &if at < self.words { format!("{cell:width$}  ") } else { format!("{cell:>width$}  ") };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_aligned_and_numbers_right_aligned() {
        let mut table = Table::new(&["cache"], &["tok/s", "x"]);
        table.row(["paged", "1234.5", "1.00"]);
        table.row(["off", "9.1"]);
        let want = "cache   tok/s     x\n-----  ------  ----\npaged  1234.5  1.00\noff       9.1\n";
        assert_eq!(table.render(), want);
    }

    #[test]
    fn a_table_without_rows_is_its_heads() {
        assert_eq!(Table::new(&["a"], &["bc"]).render(), "a  bc\n-  --\n");
    }
}
