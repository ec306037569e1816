//! Token files: content and errors.
use std::io::{Seek, Write};

use xtrain_tensor::rng::{Purpose, uniform_u64};
use xtrain_tensor::testing::{alone, times};

use super::*;
use crate::test_memory::with_little_memory;

#[test]
fn a_large_vocabulary_takes_four_bytes_an_id() {
    let header = |vocab| header::Header {
        version: header::Version::One,
        masked: true,
        vocab,
        digest: 1,
        count: 9,
        documents: 0,
        body_crc: 0,
    };
    assert_eq!((header(65536).width(), header(65537).width()), (2, 4));
    assert_eq!(header(65536).body_end(), Some(64 + 18 + 2));
    let listed = header::Header { version: header::Version::Two, documents: 3, ..header(65536) };
    assert_eq!(listed.body_end(), Some(64 + 18 + 2 + 3 * 8));
    let dir = Scratch::new();
    let (ids, mut body) = ([0u32, 70_000, 65_536], Vec::new());
    for id in ids {
        body.extend_from_slice(&id.to_le_bytes());
    }
    let wide = header::Header { count: 3, masked: false, ..header(70_001) };
    let wide = header::Header { body_crc: crc32c::crc32c_append(0, &body), ..wide };
    let file = TokenFile::open(&dir.file("wide.tok", [&wide.to_bytes()[..], &body].concat())).unwrap();
    file.verify().unwrap();
    assert_eq!(file.ids(0..3).unwrap(), ids);
    assert_eq!(file.ids(1..2).unwrap(), [70_000]);
}

#[test]
fn a_vocabulary_may_have_one_token() {
    let dir = Scratch::new();
    let body = [0u8; 4];
    let header = header::Header {
        version: header::Version::One,
        masked: false,
        vocab: 1,
        digest: 1,
        count: 2,
        documents: 0,
        body_crc: crc32c::crc32c_append(0, &body),
    };
    let file = TokenFile::open(&dir.file("one.tok", [&header.to_bytes()[..], &body].concat())).unwrap();
    assert_eq!(file.ids(0..2).unwrap(), [0, 0]);
}

/// A file of 5 GB, of which most is a hole.
#[test]
#[cfg(target_os = "linux")]
fn the_last_tokens_of_a_large_file_are_read() {
    use std::os::unix::fs::FileExt;
    let (dir, count) = (Scratch::new(), 2_500_000_000);
    let header = header::Header {
        version: header::Version::One,
        masked: true,
        vocab: 257,
        digest: 1,
        count,
        documents: 0,
        body_crc: 0,
    };
    let path = dir.file("large.tok", header.to_bytes());
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(header.body_end().unwrap()).unwrap();
    file.write_all_at(&[1, 0, 2, 0, 0, 1], header::SIZE + 2 * (count - 3)).unwrap();
    // the last byte of the mask has the bits of the last eight tokens
    file.write_all_at(&[0b0110_0000], header.body_end().unwrap() - 1).unwrap();
    let tokens = TokenFile::open(&path).unwrap();
    assert_eq!(tokens.ids(count - 3..count).unwrap(), [1, 2, 256]);
    assert_eq!(tokens.target_mask(count - 3..count).unwrap(), [true, true, false]);
}

fn small_file(dir: &Scratch) -> Vec<u8> {
    let input = dir.file("in.jsonl", "{\"prompt\": \"abc\", \"completion\": \"def\"}\n".repeat(5));
    let file = prepared(dir, &[input], &Tokenizer::byte()).unwrap();
    std::fs::read(file.path()).unwrap()
}

#[test]
fn a_token_file_is_identified_by_its_tokenizer_and_its_tokens() {
    let dir = Scratch::new();
    let open = |bytes: &[u8]| {
        let file = TokenFile::open(&dir.file("file.tok", bytes)).unwrap();
        (file.digest(), file.checksum())
    };
    let good = small_file(&dir);
    let stored = u32::from_le_bytes(good[60..64].try_into().unwrap());
    assert_eq!(open(&good), (Tokenizer::byte().digest(), stored));
}

/// `bytes` changed by `edit`, with a valid checksum of the header.
fn resealed(bytes: &[u8], edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    edit(&mut bytes);
    let crc = crc32c::crc32c_append(0, &bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_damaged_token_file_is_refused_by_its_field() {
    let dir = Scratch::new();
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
    // an id outside the vocabulary, at the first and at the last place, with the checksum of the changed body
    for at in [64, 64 + 2 * 34] {
        let mut bytes = good.clone();
        bytes[at..at + 2].copy_from_slice(&[0xff; 2]);
        let body = crc32c::crc32c_append(0, &bytes[64..]);
        check(resealed(&bytes, |bytes| bytes[48..52].copy_from_slice(&body.to_le_bytes())), "65535");
    }
    check(Vec::new(), "length: expected at least 64 bytes, the size of the header, found 0 bytes");
    check(good[..63].to_vec(), "length: expected at least 64");
    check(good[..good.len() - 1].to_vec(), "length: expected 179 bytes for 35 tokens, found 178 bytes");
    check([&good[..], &[0]].concat(), "found 180 bytes");
    check(edited(0, b"SAFE"), "magic: expected \"XTOK");
    check(edited(8, &[4]), "version: expected 1, 2 or 3, found 4");
    check(edited(8, &[1]), "length: expected 139 bytes for 35 tokens, found 179 bytes");
    check([&good[..20], &[9], &good[21..]].concat(), "checksum of the header");
    check(edited(12, &[4]), "bytes per id: expected 2 for a vocabulary of 257, found 4");
    check(edited(16, &[7]), "mask: expected 0 or 1, found 7");
    check(edited(20, &[0; 4]), "vocabulary: expected 1 to 524288, found 0");
    check(edited(32, &[36]), "length: expected 181 bytes for 36 tokens");
    check(edited(32, &[0xff; 8]), "length: expected a length for 18446744073709551615 tokens");
    check(edited(40, &[36]), "documents: expected at most 35 (tokens), found 36");
    check(edited(40, &[4]), "length: expected 171 bytes");
    check(edited(52, &[1]), "bytes 52 to 60: expected 0");
    check([&good[..70], &[good[70] ^ 1], &good[71..]].concat(), "checksum of the tokens");
    let body = |at: usize, value: &[u8]| {
        resealed(&good, |bytes| {
            bytes[at..at + value.len()].copy_from_slice(value);
            let crc = crc32c::crc32c_append(0, &bytes[64..]);
            bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        })
    };
    check(body(68, &300u16.to_le_bytes()), "token 2 is 300, expected an id below 257");
    // documents end at 7, 14, 21, 28, 35; the table begins at 139
    check(
        body(147, &[7]),
        "end of a document: expected above 7, at most 35 (tokens), found 7 for document 1",
    );
    check(body(139, &[0]), "end of a document: expected above 0");
    check(body(171, &[36]), "end of a document: expected above 28, at most 35 (tokens), found 36");
    check(body(171, &[34]), "end of the last document: expected 35, found 34");
}

#[test]
fn a_token_file_stores_document_ends_and_an_older_one_reports_that_it_does_not() {
    let dir = Scratch::new();
    let rows = "{\"text\":\"ab<|endoftext|>c\"}\n{\"text\":\"\"}\n{\"prompt\":\"a<|endoftext|>\",\"completion\":\"b\"}\n";
    let inputs = [dir.file("a.txt", "x<|endoftext|><|endoftext|>yz"), dir.file("b.jsonl", rows)];
    let file = prepared(&dir, &inputs, &Tokenizer::byte()).unwrap();
    // x. | . | yz. | ab. | c. | a.b. (a separator inside a prompt ends nothing)
    let want = [2, 3, 6, 9, 11, 15];
    assert_eq!((file.ends().unwrap(), file.documents(), file.count()), (want.to_vec(), 6, 15));
    let memory = Tokens::from_files(&inputs, &Tokenizer::byte(), Content::Any).unwrap();
    assert_eq!(memory.ends().unwrap(), want);
    assert_eq!(memory.ids(0..15).unwrap(), file.ids(0..15).unwrap());

    let mut writer = TokenWriter::create(&dir.path("open.tok"), &Tokenizer::byte()).unwrap();
    writer.push(&[1, 2], Role::Target).unwrap();
    writer.cut();
    writer.push(&[3], Role::Target).unwrap();
    writer.finish().unwrap();
    assert_eq!(TokenFile::open(&dir.path("open.tok")).unwrap().ends().unwrap(), [2, 3]);

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
    assert_eq!(old.target_mask(0..15).unwrap(), file.target_mask(0..15).unwrap());
    let error = old.ends().unwrap_err().to_string();
    assert!(error.contains("old.tok: version: expected 2, which stores document ends"), "{error}");
}

#[test]
fn a_range_of_tokens_may_be_empty_but_not_reversed_or_beyond_the_end() {
    let dir = Scratch::new();
    let mut writer = TokenWriter::create(&dir.path("long.tok"), &Tokenizer::byte()).unwrap();
    writer.push(&[1; 999], Role::Context).unwrap();
    writer.push(&[2], Role::Target).unwrap();
    let error = writer.push(&[256, 257], Role::Target).unwrap_err().to_string();
    assert!(error.contains("token 1001 is 257, expected an id below 257"), "{error}");
    writer.finish().unwrap();
    let file = TokenFile::open(&dir.path("long.tok")).unwrap();
    assert_eq!(file.target_mask(998..1000).unwrap(), [false, true]);
    for at in [0, 7, 1000] {
        assert_eq!((file.ids(at..at).unwrap(), file.target_mask(at..at).unwrap()), (vec![], vec![]));
    }
    #[allow(clippy::reversed_empty_ranges, reason = "must be refused")]
    for range in [999..1001, 1001..1001, 5..4] {
        assert!(matches!(file.ids(range.clone()), Err(DataError::Argument { .. })), "{range:?}");
        assert!(matches!(file.target_mask(range.clone()), Err(DataError::Argument { .. })), "{range:?}");
    }
}

#[test]
fn every_token_may_be_a_document() {
    let dir = Scratch::new();
    let input = dir.file("in.txt", "<|endoftext|>".repeat(3));
    let file = prepared(&dir, &[input], &Tokenizer::byte()).unwrap();
    assert_eq!((file.count(), file.ends().unwrap()), (3, vec![1, 2, 3]));
    assert_eq!(file.digest(), Tokenizer::byte().digest());
    assert_eq!(file.checksum().to_le_bytes(), std::fs::read(file.path()).unwrap()[60..64]);
}

#[test]
fn a_file_that_shrinks_under_its_reader_is_an_error() {
    let dir = Scratch::new();
    let path = dir.file("x.tok", small_file(&dir));
    let file = TokenFile::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(80).unwrap();
    assert!(file.ids(0..35).unwrap_err().to_string().contains("x.tok: cannot read"));
    assert_eq!(file.ids(0..3).unwrap(), [97, 98, 99]);
    assert!(file.ids(30..36).is_err() && file.target_mask(0..36).is_err());
}

/// Reads all of a token file.
fn used(file: &TokenFile) -> Result<(), DataError> {
    file.verify()?;
    assert!(file.ids(0..file.count())?.iter().all(|&id| id < file.vocab()));
    assert_eq!(file.target_mask(0..file.count())?.len() as u64, file.count());
    match file.ends() {
        Ok(ends) => assert!(ends.is_sorted() && ends.last().copied().unwrap_or(0) == file.count()),
        Err(error) => assert!(error.to_string().contains("version: expected 2"), "{error}"),
    }
    Ok(())
}

#[test]
fn no_mutated_token_file_makes_the_reader_panic() {
    if !alone("data::tests::token_file::no_mutated_token_file_makes_the_reader_panic") {
        return;
    }
    let dir = Scratch::new();
    let good = small_file(&dir);
    let (mut valid, mut refused) = (0, 0);
    let path = dir.file("mutant.tok", &good);
    let mut mutant = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for case in 0..times(20_000, 200_000) {
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
        let open = || TokenFile::open(&path).and_then(|file| used(&file));
        let read = with_little_memory(format_args!("token file, case {case}"), bytes.len(), open);
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
fn a_token_file_records_the_name_of_its_tokenizer() {
    let dir = Scratch::new();
    let input = [dir.file("a.txt", "abc")];
    let unnamed = prepared(&dir, &input, &Tokenizer::byte()).unwrap();
    assert_eq!(unnamed.tokenizer(), None);
    let named = |name: &str| {
        let out = dir.path("named.tok");
        prepare(&input, &out, NamedTokenizer { name, tokenizer: &Tokenizer::byte() }, &mut |_| ()).unwrap();
        TokenFile::open(&out)
    };
    let file = named("/data/tokenizer.json").unwrap();
    file.verify().unwrap();
    assert_eq!(file.tokenizer(), Some("/data/tokenizer.json"));
    assert_eq!((file.ids(0..4).unwrap(), file.ends().unwrap()), (vec![97, 98, 99, 256], vec![4]));
    assert_eq!(file.checksum(), unnamed.checksum(), "the name is no part of the tokens");
    let long = "n".repeat(4097);
    assert_eq!(named(&long).unwrap().tokenizer(), None);
    assert_eq!(named(&long[1..]).unwrap().tokenizer(), Some(&long[1..]));

    let bytes = std::fs::read(named("tokenizer").unwrap().path()).unwrap();
    let check = |bytes: Vec<u8>, want: &str| {
        let error = TokenFile::open(&dir.file("bad.tok", bytes)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        let at = bytes.len() - at;
        bytes[at] = byte;
        bytes
    };
    check(changed(1, bytes[bytes.len() - 1] ^ 1), "name of the tokenizer: expected checksum ");
    check(changed(5, b'!'), "name of the tokenizer: expected checksum ");
    let body = bytes.len() - 13;
    check(bytes[..body].to_vec(), "length: expected more than 80 bytes for 4 tokens, found 80 bytes");
    check(bytes[..body + 4].to_vec(), "length: expected more than 80 bytes for 4 tokens");
    check([&bytes[..], &[0; 4096]].concat(), "length: expected more than 80 bytes for 4 tokens");
    let latin = [&bytes[..body], &[0xff], &crc32c::crc32c(&[0xff]).to_le_bytes()[..]].concat();
    check(latin, "name of the tokenizer: expected UTF-8 text");
}

#[test]
#[cfg(unix)]
fn a_link_in_place_of_the_temporary_file_is_not_followed() {
    let dir = Scratch::new();
    let (out, other) = (dir.file("out.tok", Vec::new()), dir.file("other", b"mine"));
    let temporary = crate::temporary::temporary_path(&out);
    std::os::unix::fs::symlink(&other, &temporary).unwrap();
    let error = TokenWriter::create(&out, &Tokenizer::byte()).unwrap_err().to_string();
    assert!(error.contains(&format!("{}: cannot create", temporary.display())), "{error}");
    assert_eq!(std::fs::read(other).unwrap(), b"mine");
}
