//! What differs between two runs of a transcript, or between two machines, becomes a placeholder: the directory, times,
//! rates, and the machine. Each mask names the text before the value, so no other value is hidden.
use std::path::Path;

use regex_automata::meta::Regex;

/// Masks of what a command prints. The first group of an expression stays, the rest becomes the placeholder.
const PRINTED: [(&str, &str); 11] = [
    // progress that is printed every few seconds
    (r"(?m)^()[a-z][a-z -]*: \d+/\d+ \(\d+ %\), .*\n", ""),
    // the end of a job
    (r"(?m)^([a-z][a-z -]*: \d+/\d+ in .*, )[\d.]+ [kMG]?tok/s$", "RATE"),
    (
        r"(?m)^([a-z][a-z -]*: \d+/\d+ in )[^,\n]*, (- |[\d.]+ )\S+/s(, [\d.a-z ]+ left)?(, (- |[\d.]+ )\S+/s)?",
        "TIME",
    ),
    (r"(time to first token )[\d.]+ [a-z]+(, decode [\d.a-zA-Z/ -]+)?", "TIME"),
    (r"(?m)^(Finished in )[\d.]+ [a-z]+", "TIME"),
    (r#"(?m)("timings":)\{.*\}$"#, "TIMES}"),
    (r#"("seconds":)[\d.e-]+"#, "TIME"),
    // it depends on the number of instruction sets
    (r"(step \d+: )\d+ values of a group", "COUNT values of a group"),
    (r"()\b(portable|neon|avx2|avx512|avx512bf16|amx), ", "SIMD, "),
    (MEMORY, "SIZE"),
    PERPLEXITY,
];

/// Memory of the machine.
const MEMORY: &str = r"(available memory: )[\d.]+ [kMGT]?B";

/// The exponential function of the platform differs in the last bit.
const PERPLEXITY: (&str, &str) = (r#"("(?:val_)?perplexity":\d+\.\d{6})\d*"#, "");

/// The commit of the build, in the last line of a report.
const COMMIT: (&str, &str) = (r"(xtrain \d+\.\d+\.\d+ \()(?:[0-9a-f]{12}|unknown)", "COMMIT");

/// Masks of the files with the times and the machine of a session.
const SESSION: [(&str, &str); 2] = [
    (r#"("[a-z_]*(?:time|per_second|bytes)": ?)[\d.e-]+"#, "TIME"),
    (
        r#"("(?:pid|process_start|started|version|commit|device|system|cpu|memory)": ?)("[^"]*"|\d+)"#,
        "MACHINE",
    ),
];

type Mask = (Regex, &'static str);

pub(crate) struct Masks {
    dir: String,
    printed: Vec<Mask>,
    session: Vec<Mask>,
    files: Vec<Mask>,
}

impl Masks {
    /// The masks for the directory `dir`.
    pub(crate) fn new(dir: &Path) -> Masks {
        let compiled = |masks: &[(&str, &'static str)]| {
            masks.iter().map(|(pattern, placeholder)| (Regex::new(pattern).unwrap(), *placeholder)).collect()
        };
        let dir = dir.to_string_lossy().into_owned();
        let [printed, session, files] = [&PRINTED[..], &SESSION, &[PERPLEXITY, COMMIT]].map(compiled);
        Masks { dir, printed, session, files }
    }

    /// The masked text of standard output or standard error.
    pub(crate) fn printed(&self, text: &str) -> String {
        one_instruction_set(&replace(text.replace(&self.dir, "DIR"), &self.printed))
    }

    /// The masked text of a file.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let is_session = ["timings.jsonl", "session.json"].iter().any(|end| name.ends_with(end));
        replace(text.replace(&self.dir, "DIR"), if is_session { &self.session } else { &self.files })
    }

    /// The masked bytes of a file that is no text. A packed token file that names a tokenizer in the directory loses the
    /// checksum of the name.
    pub(crate) fn bytes(&self, name: &str, bytes: &[u8]) -> Vec<u8> {
        if !name.ends_with(".tok") {
            return bytes.to_vec();
        }
        let dir = self.dir.as_bytes();
        match bytes.windows(dir.len()).position(|part| part == dir) {
            Some(at) => [
                &bytes[..at],
                &bytes[at + dir.len()..bytes.len().saturating_sub(NAME_CHECKSUM).max(at + dir.len())],
            ]
            .concat(),
            None => bytes.to_vec(),
        }
    }
}

/// The end of a packed token file: the checksum of the name of its tokenizer.
const NAME_CHECKSUM: usize = 4;

/// The lines without those that repeat the line before for another instruction set of the machine.
fn one_instruction_set(text: &str) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines.dedup_by(|line, before| line == before && line.contains(" SIMD, 1 thread"));
    lines.concat()
}

/// Replaces what each match has behind its first group.
fn replace(mut text: String, masks: &[Mask]) -> String {
    for (regex, placeholder) in masks {
        let mut masked = String::new();
        let mut end = 0;
        for found in regex.captures_iter(&text) {
            let (whole, kept) = (found.get_match().unwrap(), found.get_group(1).unwrap());
            masked += &text[end..kept.end];
            masked += placeholder;
            end = whole.end();
        }
        masked += &text[end..];
        text = masked;
    }
    text
}

/// The records of a file of events without their checksums and without their times, which are their first field.
pub(crate) fn events(bytes: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((length, _)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let record = &rest[12..12 + length];
        assert_eq!(record[0], 0x09, "the first field of an event is no time");
        found.extend_from_slice(&record[9..]);
        rest = &rest[16 + length..];
    }
    found
}

#[test]
fn masks_hide_times_and_nothing_else() {
    let masks = Masks::new(Path::new("/runs/x"));
    let text = "training: 6/6 in 983 ms, 6.10 step/s, 128 tok/s, loss 6.337\n\
                training: 3/6 (50 %), 2.00 step/s, 1.50 s left, loss 6.5\n\
                /runs/x/t.txt: step 4, \"perplexity\":12.3456789012\n";
    let masked = "training: 6/6 in TIME, loss 6.337\nDIR/t.txt: step 4, \"perplexity\":12.345678\n";
    assert_eq!(masks.printed(text), masked);
    let line = "{\"step\":3,\"step_time\":0.5,\"tokens_per_second\":1e3,\"save_time\":1}";
    assert_eq!(
        masks.file("r/timings.jsonl", line),
        "{\"step\":3,\"step_time\":TIME,\"tokens_per_second\":TIME,\"save_time\":TIME}"
    );
    assert_eq!(masks.file("r/metrics.jsonl", line), line);
}
