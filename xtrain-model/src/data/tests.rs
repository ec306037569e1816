//! Data against its promises, ugly inputs included.
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use xtrain_tensor::rng::{Purpose, uniform_u64};

use super::*;

/// A folder that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("xtrain-data-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn prepared(dir: &Scratch, inputs: &[PathBuf], tokenizer: &Tokenizer) -> Result<TokenFile, DataError> {
    let out = dir.0.join("out.tok");
    prepare(inputs, &out, tokenizer, &mut |_| ())?;
    let file = TokenFile::open(&out)?;
    file.verify()?;
    Ok(file)
}

fn fixture_tokenizer() -> Tokenizer {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers/qwen_bpe");
    Tokenizer::load(&dir).unwrap()
}

#[test]
fn a_text_file_becomes_its_bytes_and_a_separator() {
    let dir = Scratch::new("text");
    for (text, want) in [
        ("a", vec![97, 256]),
        ("a\r\nb\n", vec![97, 13, 10, 98, 10, 256]),
        ("\u{feff}a", vec![97, 256]),
        ("a<|endoftext|>b<|endoftext|>", vec![97, 256, 98, 256]),
    ] {
        let input = dir.file("in.txt", text);
        let file = prepared(&dir, std::slice::from_ref(&input), &Tokenizer::byte()).unwrap();
        assert_eq!(file.ids(0..file.count()).unwrap(), want, "{text:?}");
        assert_eq!((file.vocab(), file.is_masked()), (257, false));
        assert_eq!(file.documents(), want.iter().filter(|&&id| id == 256).count() as u64);
        let memory = Tokens::from_files(&[input], &Tokenizer::byte(), Content::Any).unwrap();
        assert_eq!(memory.ids(0..memory.len()).unwrap(), want);
    }
}

#[test]
fn blocks_tokenise_as_the_whole_does() {
    let dir = Scratch::new("blocks");
    let line = "It's 12 o'clock,\n\n  the cat \r\nsat  there\n日本語 🙂\nend. ";
    let text: String = (0..40).map(|i| format!("{line}{i}\n{}", "\n ".repeat(i % 3))).collect();
    let path = dir.file("in.txt", &text);
    for tokenizer in [Tokenizer::byte(), fixture_tokenizer()] {
        let whole = tokenizer.encode(&text).unwrap();
        for size in [1, 7, 64, 1000, 100_000] {
            let mut blocks = text::Blocks::open(&path, size).unwrap();
            let (mut ids, mut count) = (Vec::new(), 0);
            while let Some(block) = blocks.next().unwrap() {
                ids.extend(tokenizer.encode(&block).unwrap());
                count += 1;
            }
            assert_eq!(ids, whole, "blocks of {size}");
            assert!(count > 1 || size > 1000);
        }
    }
}

#[test]
fn jsonl_records_become_documents_and_prompts_are_masked() {
    let dir = Scratch::new("jsonl");
    let lines = "{\"text\": \"ab\"}\r\n\n{\"prompt\": \"1+1=\", \"completion\": \"2\\n\", \"id\": 7}\n{\"text\":\"\"}";
    let path = dir.file("in.jsonl", lines);
    let file = prepared(&dir, std::slice::from_ref(&path), &Tokenizer::byte()).unwrap();
    let want = [97, 98, 256, 49, 43, 49, 61, 50, 10, 256];
    assert_eq!(file.ids(0..file.count()).unwrap(), want);
    assert_eq!((file.documents(), file.is_masked()), (2, true));
    let learnt = [true, true, true, false, false, false, false, true, true, true];
    assert_eq!(file.learnt(0..10).unwrap(), learnt);
    for start in 0..10 {
        assert_eq!(file.learnt(start..10).unwrap(), learnt[start as usize..]);
    }
    let tokens = Tokens::open(file.path()).unwrap();
    let excerpt = tokens.excerpt(2..9).unwrap();
    assert_eq!(excerpt.inputs, [256, 49, 43, 49, 61, 50]);
    assert_eq!(excerpt.targets, [None, None, None, None, Some(50), Some(10)]);
    assert_eq!(excerpt.target_count(), 2);
    let memory = Tokens::from_files(&[path], &Tokenizer::byte(), Content::Any).unwrap();
    assert_eq!(memory.learnt(0..10).unwrap(), learnt);
}

#[track_caller]
fn refused(name: &str, bytes: &[u8], want: &str) {
    let dir = Scratch::new(&format!("refused-{}", name.replace('.', "-")));
    let path = dir.file(name, bytes);
    let error = prepared(&dir, &[path], &Tokenizer::byte()).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains(want), "{error}");
    let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [name], "nothing is left of a failed output");
}

#[test]
fn bad_text_is_refused_by_file_and_offset() {
    refused("empty.txt", b"", "an empty file at byte 0");
    refused("latin.txt", b"caf\xe9 au lait", "byte 0xe9 at byte 3");
    refused("cut.txt", b"ab\xf0\x9f", "byte 0xf0 at byte 2");
    refused("zero.txt", b"\x7fELF\x00\x00", "a zero byte (a binary file?) at byte 4");
    refused("bom.txt", b"\xef\xbb\xbfa\xff", "byte 0xff at byte 4");
    let mut far = b"line\n".repeat(500_000);
    far.push(0xfe);
    refused("far.txt", &far, "byte 0xfe at byte 2500000");
}

#[test]
fn bad_jsonl_is_refused_by_file_and_line() {
    refused("empty.jsonl", b"", "line 0: want a record, found the end of the file");
    refused("blank.jsonl", b"\n \r\n", "line 2: want a record, found the end of the file");
    refused("broken.jsonl", b"{\"text\": \"a\"}\n{\"text\": ", "line 2: want a JSON object");
    refused("list.jsonl", b"[1]", "line 1: want a JSON object, found an array");
    refused("chat.jsonl", b"{\"messages\": []}", "line 1: want \"messages\" as [{\"role\": ...");
    refused("nobody.jsonl", b"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"gpt\"}]}", {
        "line 1: want \"messages\" with a turn of the role \"assistant\", found the roles \"user\", \"gpt\""
    });
    refused(
        "role.jsonl",
        b"{\"messages\":[{\"content\":\"a\"}]}",
        "found messages: want messages as objects",
    );
    refused("content.jsonl", b"{\"messages\":[{\"role\":\"assistant\",\"content\":[1]}]}", {
        "line 1: want \"messages\" that the tokenizer's chat template takes, found chat template: it refuses the \
         messages: content has to be text"
    });
    refused("many.jsonl", b"{\"messages\":[],\"text\":\"\"}", "found the fields \"messages\", \"text\"");
    refused("half.jsonl", b"{\"prompt\": \"a\"}", "found the fields \"prompt\"");
    refused(
        "both.jsonl",
        b"{\"text\":\"\",\"prompt\":\"a\",\"completion\":\"b\"}",
        "line 1: want \"text\", or",
    );
    refused("none.jsonl", b"{}", "found no field");
    refused("type.jsonl", b"{\"text\": 3}", "\"text\": a number");
    refused("deep.jsonl", "[".repeat(100_000).as_bytes(), "line 1: want a JSON object");
    refused("latin.jsonl", b"{\"text\": \"a\"}\n\xff", "byte 0xff at byte 14");
}

#[test]
fn a_missing_input_and_an_output_nowhere_are_refused_by_name() {
    let dir = Scratch::new("missing");
    let error = prepared(&dir, &[dir.0.join("nobody.txt")], &Tokenizer::byte()).unwrap_err();
    assert!(matches!(&error, DataError::Io { kind: std::io::ErrorKind::NotFound, .. }));
    assert!(error.to_string().contains("nobody.txt: cannot open"), "{error}");
    let input = dir.file("in.txt", "a");
    let nowhere = dir.0.join("no/such/out.tok");
    assert!(prepare(&[input], &nowhere, &Tokenizer::byte(), &mut |_| ()).is_err());
    assert!(prepare(&[], &dir.0.join("out.tok"), &Tokenizer::byte(), &mut |_| ()).is_err());
}

#[test]
fn progress_rises_to_the_whole() {
    let dir = Scratch::new("progress");
    let inputs = [dir.file("a.txt", "line\n".repeat(700_000)), dir.file("b.jsonl", "{\"text\":\"a\"}\n")];
    let mut seen = Vec::new();
    let out = dir.0.join("out.tok");
    let done = prepare(&inputs, &out, &Tokenizer::byte(), &mut |p| seen.push(p)).unwrap();
    assert!(seen.len() >= 4 && seen.windows(2).all(|w| w[0].bytes <= w[1].bytes));
    assert_eq!(seen.last(), Some(&Progress { bytes: 3_500_013, of: 3_500_013 }));
    assert_eq!(done, Prepared { bytes: 3_500_013, tokens: 3_500_003, documents: 2 });
}

#[test]
fn a_large_vocabulary_takes_four_bytes_an_id() {
    let header = |vocab| header::Header {
        version: header::Version::One,
        masked: header::Masked::Yes,
        vocab,
        digest: 1,
        count: 9,
        documents: 0,
        body_crc: 0,
    };
    assert_eq!((header(65536).width(), header(65537).width()), (2, 4));
    assert_eq!(header(65536).file_length(), Some(64 + 18 + 2));
    let listed = header::Header { version: header::Version::Two, documents: 3, ..header(65536) };
    assert_eq!(listed.file_length(), Some(64 + 18 + 2 + 3 * 8));
    let dir = Scratch::new("wide");
    let (ids, mut body) = ([0u32, 70_000, 65_536], Vec::new());
    ids.iter().for_each(|id| body.extend_from_slice(&id.to_le_bytes()));
    let wide = header::Header { count: 3, masked: header::Masked::No, ..header(70_001) };
    let wide = header::Header { body_crc: crc32c::crc32c_append(0, &body), ..wide };
    let file = TokenFile::open(&dir.file("wide.tok", [&wide.to_bytes()[..], &body].concat())).unwrap();
    file.verify().unwrap();
    assert_eq!(file.ids(0..3).unwrap(), ids);
    assert_eq!(file.ids(1..2).unwrap(), [70_000]);
}

fn small_file(dir: &Scratch) -> Vec<u8> {
    let input = dir.file("in.jsonl", "{\"prompt\": \"abc\", \"completion\": \"def\"}\n".repeat(5));
    let file = prepared(dir, &[input], &Tokenizer::byte()).unwrap();
    std::fs::read(file.path()).unwrap()
}

/// `bytes` with `edit` done to it and the header's checksum made right again.
fn resealed(bytes: &[u8], edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    edit(&mut bytes);
    let crc = crc32c::crc32c_append(0, &bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_damaged_token_file_is_refused_by_its_field() {
    let dir = Scratch::new("damaged");
    let good = small_file(&dir);
    let open = |bytes: &[u8]| {
        let path = dir.file("bad.tok", bytes);
        TokenFile::open(&path).and_then(|file| file.verify()).map_err(|e| e.to_string())
    };
    assert_eq!(open(&good), Ok(()));
    let check = |bytes: Vec<u8>, want: &str| {
        let error = open(&bytes).unwrap_err();
        assert!(error.contains("bad.tok") && error.contains(want), "{error}");
    };
    let edited =
        |at: usize, value: &[u8]| resealed(&good, |bytes| bytes[at..at + value.len()].copy_from_slice(value));
    check(Vec::new(), "length: want at least 64 bytes, a header, found 0 bytes");
    check(good[..63].to_vec(), "length: want at least 64");
    check(good[..good.len() - 1].to_vec(), "length: want 179 bytes for 35 tokens, found 178 bytes");
    check([&good[..], &[0]].concat(), "found 180 bytes");
    check(edited(0, b"SAFE"), "magic: want \"XTOK");
    check(edited(8, &[3]), "version: want 1 or 2, found 3");
    check(edited(8, &[1]), "length: want 139 bytes for 35 tokens, found 179 bytes");
    check([&good[..20], &[9], &good[21..]].concat(), "checksum of the header");
    check(edited(12, &[4]), "bytes of an id: want 2 for a vocabulary of 257, found 4");
    check(edited(16, &[7]), "mask: want 0 or 1, found 7");
    check(edited(20, &[0; 4]), "vocabulary: want 1 to 524288, found 0");
    check(edited(32, &[36]), "length: want 181 bytes for 36 tokens");
    check(edited(32, &[0xff; 8]), "length: want a length that holds 18446744073709551615 tokens");
    check(edited(40, &[36]), "documents: want at most 35 (tokens), found 36");
    check(edited(40, &[4]), "length: want 171 bytes");
    check(edited(52, &[1]), "bytes 52 to 60: want 0");
    check([&good[..70], &[good[70] ^ 1], &good[71..]].concat(), "checksum of the tokens");
    let body = |at: usize, value: &[u8]| {
        resealed(&good, |bytes| {
            bytes[at..at + value.len()].copy_from_slice(value);
            let crc = crc32c::crc32c_append(0, &bytes[64..]);
            bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        })
    };
    check(body(68, &300u16.to_le_bytes()), "token 2 is 300, the vocabulary ends at 257");
    // documents end at 7, 14, 21, 28, 35; the table begins at 139
    check(body(147, &[7]), "end of a document: want above 7, at most 35 (tokens), found 7 for document 1");
    check(body(139, &[0]), "end of a document: want above 0");
    check(body(171, &[36]), "end of a document: want above 28, at most 35 (tokens), found 36");
    check(body(171, &[34]), "end of the last document: want 35, found 34");
}

#[test]
fn a_packed_file_says_where_its_documents_end_and_an_older_one_says_that_it_does_not() {
    let dir = Scratch::new("ends");
    let rows = "{\"text\":\"ab<|endoftext|>c\"}\n{\"text\":\"\"}\n{\"prompt\":\"a<|endoftext|>\",\"completion\":\"b\"}\n";
    let inputs = [dir.file("a.txt", "x<|endoftext|><|endoftext|>yz"), dir.file("b.jsonl", rows)];
    let file = prepared(&dir, &inputs, &Tokenizer::byte()).unwrap();
    // x. | . | yz. | ab. | c. | a.b. (a separator inside a prompt ends nothing)
    let want = [2, 3, 6, 9, 11, 15];
    assert_eq!((file.ends().unwrap(), file.documents(), file.count()), (want.to_vec(), 6, 15));
    let memory = Tokens::from_files(&inputs, &Tokenizer::byte(), Content::Any).unwrap();
    assert_eq!(memory.ends().unwrap(), want);
    assert_eq!(memory.ids(0..15).unwrap(), file.ids(0..15).unwrap());

    let mut writer = TokenWriter::create(&dir.0.join("open.tok"), &Tokenizer::byte()).unwrap();
    writer.push(&[1, 2], Role::Learnt).unwrap();
    writer.cut();
    writer.push(&[3], Role::Learnt).unwrap();
    writer.finish().unwrap();
    assert_eq!(TokenFile::open(&dir.0.join("open.tok")).unwrap().ends().unwrap(), [2, 3]);

    let bytes = std::fs::read(file.path()).unwrap();
    let table = bytes.len() - 6 * 8;
    let old = resealed(&bytes[..table], |bytes| {
        bytes[8] = 1;
        let crc = crc32c::crc32c_append(0, &bytes[64..]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
    });
    let old = TokenFile::open(&dir.file("old.tok", old)).unwrap();
    old.verify().unwrap();
    assert_eq!(old.ids(0..15).unwrap(), file.ids(0..15).unwrap());
    assert_eq!(old.learnt(0..15).unwrap(), file.learnt(0..15).unwrap());
    let error = old.ends().unwrap_err().to_string();
    assert!(error.contains("old.tok: version: want 2, which says where documents end"), "{error}");
}

#[test]
fn conversations_are_held_out_whole() {
    let ends = [4, 9, 11, 20, 21];
    let of = |share| Split::of_documents(&ends, share).map(|s| (s.train, s.validation));
    assert_eq!(of(0.1).unwrap(), (0..20, 20..21));
    assert_eq!(of(0.5).unwrap(), (0..9, 9..21));
    assert_eq!(of(0.0).unwrap(), (0..21, 21..21));
    assert_eq!(Split::of_documents(&[], 0.5).unwrap().train, 0..0);
    assert!(of(1.0).is_err());
}

/// The byte tokenizer with another chat template.
fn with_template(template: &str) -> Tokenizer {
    let config = serde_json::json!({ "eos_token": "<|endoftext|>", "chat_template": template });
    let json = Tokenizer::byte().files()[0].1.to_vec();
    Tokenizer::from_parts(json, Some(config.to_string().into_bytes()), Path::new("tokenizer.json")).unwrap()
}

#[test]
fn what_the_assistant_says_is_learnt_and_the_token_that_ends_its_turn() {
    let dir = Scratch::new("chat");
    let row = r#"{"messages":[{"role":"user","content":"2"},{"role":"assistant","content":"ab"},"#
        .to_string()
        + r#"{"role":"user","content":"3"},{"role":"assistant","content":"c"}]}"#;
    let path = dir.file("in.jsonl", format!("{row}\n{{\"prompt\":\"p\",\"completion\":\"q\"}}\n"));
    let turns = |body: &str| format!("{{% for m in messages %}}{body}{{% endfor %}}");
    let said = "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}";
    // `.` ends a text, and a capital stands for what is learnt
    for (template, want) in [
        (None, "user\n2.assistant\nAB!user\n3.assistant\nC!"),
        (Some(turns("{{ m.role[0] }}{{ m.content }}{{ eos_token }}")), "u2.AAB!u3.AC!"),
        (Some(turns(&format!("{said}{{{{ m.content }}}}{{% endif %}}{{{{ eos_token }}}}"))), "2.AB!3.C!"),
        (Some(turns("{{ m.content }}")), "2AB3C!"),
        (Some(turns(&format!("{said}{{{{ m.content }}}}{{% endif %}};"))), "2;AB;3;C;!"),
    ] {
        let tokenizer = template.map_or_else(Tokenizer::byte, |template| with_template(&template));
        let file = prepared(&dir, std::slice::from_ref(&path), &tokenizer).unwrap();
        let count = file.count();
        let shown: String = (file.ids(0..count).unwrap().into_iter().zip(file.learnt(0..count).unwrap()))
            .map(|(id, learnt)| match (id, learnt) {
                (256, false) => '.',
                (256, true) => '!',
                (id, false) => id as u8 as char,
                (id, true) => (id as u8 as char).to_ascii_uppercase(),
            })
            .collect();
        assert_eq!(shown, format!("{want}pQ!"));
        assert_eq!(file.ends().unwrap(), [want.len() as u64, count], "{want}");
        let memory = Tokens::from_files(std::slice::from_ref(&path), &tokenizer, Content::Conversations);
        assert_eq!(memory.unwrap().learnt(0..count).unwrap(), file.learnt(0..count).unwrap());
    }
}

#[test]
fn a_chat_template_of_others_ends_a_turn_with_its_own_token() {
    let (dir, tokenizer) = (Scratch::new("foreign"), fixture_tokenizer());
    let row = r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}"#;
    let file = prepared(&dir, &[dir.file("in.jsonl", row)], &tokenizer).unwrap();
    let (ids, learnt) = (file.ids(0..file.count()).unwrap(), file.learnt(0..file.count()).unwrap());
    let said: Vec<u32> = ids.iter().zip(&learnt).filter(|(_, learnt)| **learnt).map(|(&id, _)| id).collect();
    assert_eq!(tokenizer.decode(&said), "Hello<|im_end|>\n");
    assert_eq!(file.ends().unwrap(), [file.count()]);
    assert!(tokenizer.decode(&ids).ends_with("<|im_start|>assistant\nHello<|im_end|>\n"), "{ids:?}");
}

#[test]
fn what_has_no_answer_is_no_conversation() {
    let dir = Scratch::new("answers");
    let check = |name: &str, bytes: &str, want: &str| {
        let path = dir.file(name, bytes);
        let error = Tokens::from_files(&[path], &Tokenizer::byte(), Content::Conversations).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    };
    check("a.txt", "text", "a.txt: kind of data: want JSONL with \"messages\", or");
    let rows = "{\"prompt\":\"\",\"completion\":\"a\"}\n{\"text\":\"a\"}";
    check(
        "b.jsonl",
        rows,
        "b.jsonl: line 2: want \"messages\", or \"prompt\" and \"completion\", found \"text\"",
    );
}

#[test]
fn a_file_that_shrinks_under_its_reader_is_an_error() {
    let dir = Scratch::new("shrinks");
    let path = dir.file("x.tok", small_file(&dir));
    let file = TokenFile::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(80).unwrap();
    assert!(file.ids(0..35).unwrap_err().to_string().contains("x.tok: cannot read"));
    assert_eq!(file.ids(0..3).unwrap(), [97, 98, 99]);
    assert!(file.ids(30..36).is_err() && file.learnt(0..36).is_err());
}

#[test]
fn no_mutated_token_file_makes_the_reader_panic() {
    let dir = Scratch::new("mutated");
    let good = small_file(&dir);
    let (mut valid, mut refused) = (0, 0);
    let path = dir.file("mutant.tok", &good);
    let mut mutant = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for case in 0..xtrain_tensor::testing::times(20_000, 200_000) {
        let draw = |i: u32, n: u64| uniform_u64(11, case, i, Purpose::Sample) % n;
        let mut bytes = good.clone();
        for i in 0..=draw(0, 3) as u32 {
            let at = draw(10 + i, if draw(50 + i, 4) == 0 { good.len() as u64 } else { 64 }) as usize;
            let edges = [0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff];
            bytes[at] =
                if draw(20 + i, 2) == 0 { edges[draw(30 + i, 8) as usize] } else { draw(40 + i, 256) as u8 };
        }
        if draw(1, 4) > 0 {
            bytes = resealed(&bytes, |bytes| {
                let crc = crc32c::crc32c_append(0, &bytes[64..]);
                bytes[48..52].copy_from_slice(&crc.to_le_bytes());
            });
        }
        match draw(2, 8) {
            0 => bytes.truncate(draw(3, good.len() as u64 + 1) as usize),
            1 => bytes.resize(good.len() + draw(3, 100) as usize, 0x55),
            _ => {}
        }
        mutant.rewind().unwrap();
        mutant.write_all(&bytes).unwrap();
        mutant.set_len(bytes.len() as u64).unwrap();
        let read = TokenFile::open(&path).and_then(|file| {
            file.verify()?;
            assert!(file.ids(0..file.count())?.iter().all(|&id| id < file.vocab()));
            assert_eq!(file.learnt(0..file.count())?.len() as u64, file.count());
            match file.ends() {
                Ok(ends) => assert!(ends.is_sorted() && ends.last().copied().unwrap_or(0) == file.count()),
                Err(error) => assert!(error.to_string().contains("version: want 2"), "{error}"),
            }
            Ok(())
        });
        match read {
            Ok(()) => valid += 1,
            Err(error) => {
                assert!(error.to_string().contains("mutant.tok"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(valid > 100 && refused > 10_000, "{valid} valid, {refused} refused");
}

#[test]
fn the_last_tenth_is_for_validation() {
    let split = Split::tail(1_115_394, 0.1).unwrap();
    assert_eq!((split.train, split.validation), (0..1_003_854, 1_003_854..1_115_394));
    assert_eq!(Split::tail(7, 0.0).unwrap().validation, 7..7);
    assert_eq!(Split::tail(0, 0.5).unwrap().train, 0..0);
    for fraction in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        assert!(Split::tail(10, fraction).is_err());
    }
}

#[test]
fn evaluation_covers_each_target_once() {
    for (part, context) in
        [(0..100, 7), (5..6, 3), (5..5, 3), (3..5, 64), (10..75, 64), (10..76, 64), (0..64, 1)]
    {
        let mut targets = Vec::new();
        for window in evaluation_windows(part.clone(), context) {
            assert!(window.end - window.start <= context + 1);
            targets.extend(window.start + 1..window.end);
        }
        let want: Vec<u64> = (part.start + 1..part.end).collect();
        assert_eq!(targets, want, "{part:?} by {context}");
    }
}

#[test]
fn windows_do_not_depend_on_how_they_are_asked() {
    for order in [Order::Random, Order::Epochs] {
        let windows = Windows::new(100..1000, 16, 42, order).unwrap();
        let forward: Vec<_> = (0..200).map(|i| windows.range(i / 4, (i % 4) as u32, 4)).collect();
        let again = Windows::new(100..1000, 16, 42, order).unwrap();
        for i in (0..200).rev() {
            assert_eq!(again.range(i / 4, (i % 4) as u32, 4), forward[i as usize]);
        }
        assert!(forward.iter().all(|w| w.start >= 100 && w.end <= 1000 && w.end - w.start == 17));
        let other = Windows::new(100..1000, 16, 43, order).unwrap();
        assert_ne!(forward, (0..200).map(|i| other.range(i / 4, (i % 4) as u32, 4)).collect::<Vec<_>>());
    }
}

#[test]
fn a_run_resumed_at_a_step_reads_what_the_whole_run_read() {
    let tokens = Tokens::from_ids((0..500).collect(), 500).unwrap();
    let windows = Windows::new(0..500, 16, 1, Order::Random).unwrap();
    let whole: Vec<_> = (0..20).map(|step| windows.batch(&tokens, step, 3).unwrap()).collect();
    let resumed = Windows::new(0..500, 16, 1, Order::Random).unwrap();
    assert_eq!(resumed.batch(&tokens, 13, 3).unwrap(), whole[13]);
    assert_eq!(whole[0][0].inputs.len(), 16);
    assert_eq!(whole[0][0].targets[0], Some(whole[0][0].inputs[1]));
}

#[test]
fn random_windows_reach_every_start_evenly() {
    let windows = Windows::new(0..74, 64, 7, Order::Random).unwrap();
    let mut seen = [0u32; 10];
    (0..10_000).for_each(|step| seen[windows.range(step, 0, 1).start as usize] += 1);
    assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
}

#[test]
fn an_epoch_shows_every_window_once() {
    let windows = Windows::new(50..50 + 16 * 37 + 9, 16, 3, Order::Epochs).unwrap();
    assert_eq!(windows.per_epoch(), 37);
    let (mut orders, mut phases) = (Vec::new(), Vec::new());
    for epoch in 0..20u64 {
        let mut starts: Vec<u64> =
            (0..37).map(|i| epoch * 37 + i).map(|n| windows.range(n / 5, (n % 5) as u32, 5).start).collect();
        orders.push(starts.clone());
        starts.sort_unstable();
        phases.push(starts[0]);
        assert!(starts.windows(2).all(|w| w[1] - w[0] == 16), "{starts:?}");
    }
    assert!(orders.windows(2).all(|w| w[0] != w[1]));
    assert!(phases.iter().any(|&phase| phase != phases[0]));
}

#[test]
fn a_permutation_is_one() {
    for n in [1, 2, 3, 4, 5, 16, 17, 37, 1000, 10_000] {
        let permutation = Permutation::new(n, [1, 2, 3, 4, 5, n]);
        let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
        assert!(n < 37 || seen.iter().zip(0..).filter(|&(&x, i)| x == i).count() < 10);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..n), "{n}");
    }
    assert!(Permutation::new(1 << 62, [0; 6]).at((1 << 62) - 1) < 1 << 62);
}

#[test]
fn data_shorter_than_a_context_is_refused() {
    assert!(Windows::new(0..17, 16, 0, Order::Epochs).is_ok());
    for (part, context) in [(0..16, 16), (0..0, 1), (5..5, 64), (0..10, u64::MAX), (0..10, 0)] {
        assert!(Windows::new(part, context, 0, Order::Random).is_err());
    }
    let error = Windows::new(0..2, 64, 0, Order::Random).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the training data (a context and one more): want at least 65 tokens, found 2"
    );
    assert!(Tokens::from_ids(vec![1, 5], 5).unwrap_err().to_string().contains("token 1 is 5"));
    assert_eq!(Excerpt::new(&[], &[]), Excerpt::default());
    assert_eq!(Excerpt::new(&[3], &[true]).target_count(), 0);
}
