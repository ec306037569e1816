//! A page: header, sections, tables, figures.
use super::figure::{Figure, FigureData};
use crate::report::printable;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A browser that follows the policy loads nothing from elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A self-contained page under construction. It is also well-formed XML. All texts are escaped.
#[derive(Debug)]
pub(crate) struct Page {
    title: String,
    body: String,
    figures: Vec<FigureData>,
}

/// A part of a stacked bar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// The share of the whole, 0 to 1.
    pub(crate) share: f64,
    /// The value as text.
    pub(crate) value: String,
}

impl Page {
    /// A page with a heading, a mark next to it, and a line under it.
    pub(crate) fn new(title: &str, mark: (&str, &str), subtitle: &str) -> Page {
        let (class, word) = mark;
        let body = format!(
            "<header><h1>{}</h1><span class=\"mark {class}\">{}</span><p>{}</p></header>\n",
            escape(title),
            escape(word),
            escape(subtitle)
        );
        Page { title: title.to_string(), body, figures: Vec::new() }
    }

    /// Starts a section.
    pub(crate) fn section(&mut self, heading: &str) {
        self.body += &format!("<h2>{}</h2>\n", escape(heading));
    }

    /// Adds a paragraph.
    pub(crate) fn paragraph(&mut self, text: &str) {
        self.body += &format!("<p class=\"note\">{}</p>\n", escape(text));
    }

    /// Adds tiles: a label, a value, a note.
    pub(crate) fn tiles(&mut self, tiles: &[[String; 3]]) {
        self.body += "<div class=\"tiles\">\n";
        for tile in tiles {
            let [label, value, note] = tile.each_ref().map(|text| escape(text));
            self.body += &format!("<div><span>{label}</span><b>{value}</b><small>{note}</small></div>\n");
        }
        self.body += "</div>\n";
    }

    /// Adds figures in columns.
    pub(crate) fn figures(&mut self, figures: &[Figure]) {
        self.body += "<div class=\"charts\">\n";
        for figure in figures {
            self.body += &figure.markup(self.figures.len());
            self.figures.push(figure.data());
        }
        self.body += "</div>\n";
    }

    /// Adds a stacked bar with its legend.
    pub(crate) fn bar(&mut self, title: &str, parts: &[Bar]) {
        self.body += &format!("<h3>{}</h3>\n<div class=\"bar\">", escape(title));
        for (at, part) in parts.iter().enumerate() {
            let width = (part.share * 1e4).round() / 100.0;
            self.body += &format!("<i class=\"c{}\" style=\"width:{width}%\"></i>", at % 8);
        }
        self.body += "</div>\n<ul class=\"parts\">\n";
        for (at, part) in parts.iter().enumerate() {
            let (name, value, share) = (escape(&part.name), escape(&part.value), 100.0 * part.share);
            self.body += &format!(
                "<li class=\"c{}\"><i></i>{name} <b>{value}</b> <small>{share:.1} %</small></li>\n",
                at % 8
            );
        }
        self.body += "</ul>\n";
    }

    /// Adds a table. The first column has the names of the rows.
    pub(crate) fn table(&mut self, headers: &[&str], rows: &[Vec<String>]) {
        self.body += "<div class=\"scroll\"><table>\n";
        if !headers.is_empty() {
            let cells: String = headers.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
            self.body += &format!("<tr>{cells}</tr>\n");
        }
        for row in rows {
            let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            self.body += &format!("<tr>{cells}</tr>\n");
        }
        self.body += "</table></div>\n";
    }

    /// Adds a text with a caption, as it is.
    pub(crate) fn text(&mut self, caption: &str, text: &str) {
        self.body += &format!(
            "<div class=\"text\"><span>{}</span><pre>{}</pre></div>\n",
            escape(caption),
            escape(text)
        );
    }

    /// Starts a part that the reader opens.
    pub(crate) fn open_details(&mut self, summary: &str) {
        self.body += &format!("<details><summary>{}</summary>\n", escape(summary));
    }

    /// Ends the part.
    pub(crate) fn close_details(&mut self) {
        self.body += "</details>\n";
    }

    /// The page as a file.
    pub(crate) fn finish(self, footer: &str) -> String {
        let data = serde_json::to_string(&self.figures).expect("numbers and strings are JSON");
        let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        let (title, footer) = (escape(&self.title), escape(footer));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}\
             <footer>{footer}</footer>\n</main>\n\
             <script type=\"application/json\" id=\"data\">{data}</script>\n\
             <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
            self.body
        )
    }
}

/// Escapes text for an element or an attribute. Control characters except line break and tab become U+FFFD.
fn escape(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}
