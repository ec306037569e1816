//! Data files in formats of other programs, by the endings of their names, their first bytes, or their fields.
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::model::data::TokenFile;

/// What to do with a file in the format of another program.
struct Format {
    endings: &'static [&'static str],
    /// Whether such a file is text, which training would read with its syntax.
    is_text: bool,
    conversion: &'static str,
}

const FORMATS: &[Format] = &[
    Format {
        endings: &["json"],
        is_text: true,
        conversion: "if each line is an object, name the file *.jsonl; for an array: jq -c '.[]' IN.json > OUT.jsonl",
    },
    Format {
        endings: &["csv"],
        is_text: true,
        conversion: "to convert it with pandas: read_csv(IN).to_json(OUT, orient='records', lines=True), OUT as *.jsonl",
    },
    Format {
        endings: &["tsv"],
        is_text: true,
        conversion: "to convert it with pandas: read_csv(IN, sep='\\t').to_json(OUT, orient='records', lines=True), OUT as *.jsonl",
    },
    Format {
        endings: &["arrow"],
        is_text: false,
        conversion: "to convert it with datasets: Dataset.from_file(IN).to_json(OUT), OUT as *.jsonl",
    },
    Format {
        endings: &["feather"],
        is_text: false,
        conversion: "to convert it with pandas: read_feather(IN).to_json(OUT, orient='records', lines=True), OUT as *.jsonl",
    },
    Format {
        endings: &["parquet"],
        is_text: false,
        conversion: "to convert it with pandas: read_parquet(IN).to_json(OUT, orient='records', lines=True), OUT as *.jsonl",
    },
    Format {
        endings: &["gz", "bz2", "xz", "zst", "zip", "tar"],
        is_text: false,
        conversion: "decompress it first",
    },
    Format {
        endings: &["bin", "npy", "idx", "pt", "pth", "pkl"],
        is_text: false,
        conversion: "packed tokens of other programs cannot be read; to pack text: xtrain prepare FILE --out OUT.tok",
    },
];

/// How a file in the format of another program becomes data. `None`: the format is not known.
pub(super) fn conversion(file: &Path) -> Option<&'static str> {
    format_of(file).map(|format| format.conversion)
}

/// The hint for a file with a byte that is not UTF-8 text: another format, or another encoding. A zero byte is no text in
/// any encoding of single bytes.
pub(super) fn of_not_text(file: &Path, byte: u8) -> Option<&'static str> {
    let encoding = "text has to be UTF-8; to convert it: iconv -f ENCODING -t UTF-8 FILE";
    if file.is_file() && TokenFile::open(file).is_ok() {
        return Some("the file is a packed token file: train and eval read it with --data");
    }
    let format = format_of(file);
    let binary = format.filter(|format| !format.is_text).map(|format| format.conversion);
    binary.or_else(|| of_first_bytes(file)).or_else(|| match format {
        Some(format) if byte == 0 => Some(format.conversion),
        _ => (byte != 0).then_some(encoding),
    })
}

/// The beginnings of compressed files, and of text in other encodings.
const BEGINNINGS: &[(&[u8], &str)] = &[
    (&[0x1f, 0x8b], "the file is compressed with gzip: decompress it first"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "the file is compressed with zstd: decompress it first"),
    (b"\xfd7zXZ", "the file is compressed with xz: decompress it first"),
    (b"PK\x03\x04", "the file is a ZIP archive: extract it first"),
    (&[0xff, 0xfe, 0, 0], "text has to be UTF-8; to convert it: iconv -f UTF-32 -t UTF-8 FILE"),
    (&[0xff, 0xfe], "text has to be UTF-8; to convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (&[0xfe, 0xff], "text has to be UTF-8; to convert it: iconv -f UTF-16 -t UTF-8 FILE"),
];

/// The hint for a file that begins like one of another format.
fn of_first_bytes(file: &Path) -> Option<&'static str> {
    // a pipe would block
    file.metadata().ok().filter(|found| found.is_file())?;
    let mut start = Vec::new();
    File::open(file).ok()?.take(8).read_to_end(&mut start).ok()?;
    BEGINNINGS.iter().find(|(bytes, _)| start.starts_with(bytes)).map(|(_, hint)| *hint)
}

/// The hint for a file whose lines are no objects: an array of objects, lists of messages, or objects of several lines.
pub(super) fn of_whole_json(file: &Path) -> Option<&'static str> {
    // a pipe would block
    file.metadata().ok().filter(|found| found.is_file())?;
    let mut start = Vec::new();
    File::open(file).ok()?.take(1 << 10).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    let start = start.trim_start_matches('\u{feff}').trim_start();
    let first = start.strip_prefix('[').map(str::trim_start).filter(|first| first.starts_with('{'));
    match first {
        Some(first) if first.split('}').next().is_some_and(|object| object.contains("\"role\"")) => Some(
            "each line has to be an object; to convert lists of messages: jq -c '{messages: .}' IN > OUT.jsonl",
        ),
        Some(_) => {
            Some("each line has to be an object; to convert an array: jq -c '.[]' IN.json > OUT.jsonl")
        }
        None if start.lines().next()?.trim_end() == "{" => {
            Some("each object has to be in one line; to convert it: jq -c . IN.json > OUT.jsonl")
        }
        None => None,
    }
}

/// The hint for a line without the fields of training data: those of other programs, among the quoted names in `found`.
pub(super) fn of_fields(found: &str) -> Option<&'static str> {
    let has = |name: &str| found.contains(&format!("{name:?}"));
    if has("conversations") {
        return Some(
            "to convert ShareGPT: jq -c '{messages: [.conversations[] | {role: (.role // {human: \"user\", \
             gpt: \"assistant\"}[.from] // .from), content: (.content // .value)}]}' IN.jsonl > OUT.jsonl",
        );
    }
    if has("instruction") && has("output") {
        return Some(
            "to convert Alpaca: jq -c '{prompt: (.instruction + \"\\n\" + .input + \"\\n\"), completion: .output}' \
             IN.jsonl > OUT.jsonl",
        );
    }
    (has("question") && has("answer")).then_some(
        "to convert it: jq -c '{prompt: (.question + \"\\n\"), completion: .answer}' IN.jsonl > OUT.jsonl",
    )
}

/// Warns that `file` is read as plain text if its name says that it is text in another format.
pub(super) fn warn_of_syntax(file: &Path) {
    if let Some(format) = format_of(file).filter(|format| format.is_text) {
        let (file, conversion) = (file.display(), format.conversion);
        eprintln!("warning: {file}: read as plain text, with its syntax; {conversion}");
    }
}

fn format_of(file: &Path) -> Option<&'static Format> {
    let ending = file.extension()?.to_str()?.to_ascii_lowercase();
    FORMATS.iter().find(|format| format.endings.contains(&ending.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_decides_and_own_formats_have_no_conversion() {
        for (name, begins) in [
            ("a.json", "if each line"),
            ("A.JSON", "if each line"),
            ("a.tsv", "to convert it with pandas: read_csv"),
            ("a.parquet", "to convert it with pandas: read_parquet"),
            ("a.jsonl.gz", "decompress"),
            ("train.bin", "packed tokens of other programs"),
        ] {
            assert!(conversion(Path::new(name)).is_some_and(|found| found.starts_with(begins)), "{name}");
        }
        let encoding = of_not_text(Path::new("a.txt"), 0xe9);
        assert!(encoding.is_some_and(|hint| hint.contains("iconv")));
        assert_eq!(of_not_text(Path::new("a.csv"), 0xe9), encoding);
        assert_eq!(of_not_text(Path::new("a.csv"), 0), conversion(Path::new("a.csv")));
        assert_eq!(of_not_text(Path::new("a.zip"), 0xe9), conversion(Path::new("a.zip")));
        assert_eq!(of_not_text(Path::new("a.txt"), 0), None);
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes, part) in [
            ("a.jsonl", &[0x1f, 0x8b, 8][..], "gzip"),
            ("a.txt", &[0xff, 0xfe, b'a', 0], "UTF-16"),
            ("b.txt", &[0xff, 0xfe, 0, 0], "UTF-32"),
            ("c.txt", b"BZh\xe9", "ENCODING"),
            ("model.pt", b"PK\x03\x04", "packed tokens of other programs"),
            ("d.txt", b"PK\x03\x04", "ZIP"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let hint = of_not_text(&path, 0x8b);
            assert!(hint.is_some_and(|hint| hint.contains(part)), "{name}: {hint:?}");
        }
        for name in ["a.txt", "a.jsonl", "a.ndjson", "a.tok", "a.md", "json", ".json", "a."] {
            assert_eq!(conversion(Path::new(name)), None, "{name}");
        }
    }
}
