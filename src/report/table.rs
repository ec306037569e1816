//! Text tables.

/// A column: its header and its alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column<'a> {
    header: &'a str,
    right: bool,
}

impl<'a> Column<'a> {
    /// A left-aligned column of words.
    pub(crate) fn words(header: &'a str) -> Column<'a> {
        Column { header, right: false }
    }

    /// A right-aligned column of numbers.
    pub(crate) fn numbers(header: &'a str) -> Column<'a> {
        Column { header, right: true }
    }
}

/// A table with headers and two spaces between columns. It is ASCII if its cells are.
#[derive(Debug, Clone)]
pub(crate) struct Table<'a> {
    columns: Vec<Column<'a>>,
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    /// A table without rows.
    pub(crate) fn new(columns: impl IntoIterator<Item = Column<'a>>) -> Table<'a> {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty; cells after the last column are dropped.
    pub(crate) fn row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Renders the table: headers, a rule, rows, each with a line break.
    pub(crate) fn render(&self) -> String {
        let headers: Vec<String> = self.columns.iter().map(|column| column.header.to_string()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                self.rows.iter().chain([&headers]).map(|row| row[at].chars().count()).max().unwrap_or(0)
            })
            .collect();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        let mut text = String::new();
        for row in [&headers, &rule].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), &width) in row.iter().zip(&self.columns).zip(&widths) {
                let pad = " ".repeat(width - cell.chars().count());
                let (before, after) = if column.right { (pad, String::new()) } else { (String::new(), pad) };
                line.push_str(&format!("{before}{cell}{after}  "));
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
        let mut table = Table::new([Column::words("cache"), Column::numbers("tok/s"), Column::numbers("x")]);
        table.row(["paged", "1234.5", "1.00"]);
        table.row(["off", "9.1"]);
        let want = "cache   tok/s     x\n-----  ------  ----\npaged  1234.5  1.00\noff       9.1\n";
        assert_eq!(table.render(), want);
    }

    #[test]
    fn a_table_without_rows_is_its_heads() {
        assert_eq!(Table::new([Column::words("a"), Column::numbers("bc")]).render(), "a  bc\n-  --\n");
    }
}
