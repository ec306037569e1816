//! The first difference of two files.

/// Characters of a line before and after the first difference.
const AROUND: usize = 60;

/// The first difference of the bytes of two files. `None`: they are equal.
pub(crate) fn first(got: &[u8], want: &[u8]) -> Option<String> {
    if got == want {
        return None;
    }
    let at = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    Some(match (std::str::from_utf8(got), std::str::from_utf8(want)) {
        (Ok(got), Ok(want)) => in_text(got, want, at),
        _ => in_words(got, want, at),
    })
}

/// The first difference of a file in two lists of files with the same names. `None`: all are equal.
pub(crate) fn first_file<S: AsRef<str>>(got: &[(S, Vec<u8>)], want: &[(S, Vec<u8>)]) -> Option<String> {
    let [got_names, want_names] =
        [got, want].map(|files| files.iter().map(|file| file.0.as_ref()).collect::<Vec<&str>>());
    if got_names != want_names {
        return Some(format!("files {got_names:?}, expected {want_names:?}"));
    }
    let mut pairs = got.iter().zip(want);
    pairs.find_map(|((name, got), (_, want))| Some(format!("{}: {}", name.as_ref(), first(got, want)?)))
}

/// The line of byte `at`, and both texts around it.
fn in_text(got: &str, want: &str, at: usize) -> String {
    let line = 1 + want.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count();
    let around = |text: &str| {
        let bytes = text.as_bytes();
        let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let end = bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |n| at + n);
        let (from, to) = (start.max(at.saturating_sub(AROUND)), end.min(at + AROUND));
        String::from_utf8_lossy(&bytes[from..to]).into_owned()
    };
    format!("line {line}: found {:?}, expected {:?}", around(got), around(want))
}

/// The 32-bit word of byte `at`, as bits and as an f32.
fn in_words(got: &[u8], want: &[u8], at: usize) -> String {
    let word = |bytes: &[u8]| match bytes.get(at / 4 * 4..at / 4 * 4 + 4) {
        None => "no word".to_string(),
        Some(word) => {
            let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            format!("{bits:08x} ({:e})", f32::from_bits(bits))
        }
    };
    let lengths = format!("{} and {} bytes", got.len(), want.len());
    format!("byte {} of {lengths}: found {}, expected {}", at / 4 * 4, word(got), word(want))
}

#[test]
fn the_first_difference_names_its_place_and_both_values() {
    assert_eq!(first(b"a\nb", b"a\nb"), None);
    let text = first(b"same\n{\"x\": 1.5, \"y\": 2}\nz", b"same\n{\"x\": 1.25, \"y\": 2}\nz").unwrap();
    assert_eq!(
        text,
        "line 2: found \"{\\\"x\\\": 1.5, \\\"y\\\": 2}\", expected \"{\\\"x\\\": 1.25, \\\"y\\\": 2}\""
    );
    let bytes = |x: [f32; 2]| [&[0xff; 4][..], &x.map(f32::to_le_bytes).concat()].concat();
    let text = first(&bytes([1.0, 3.0]), &bytes([1.0, 2.0])).unwrap();
    assert_eq!(text, "byte 8 of 12 and 12 bytes: found 40400000 (3e0), expected 40000000 (2e0)");
    let files = |name: &str, text: &str| vec![(name.to_string(), text.as_bytes().to_vec())];
    assert_eq!(
        first_file(&files("m", "1"), &files("m", "2")).unwrap(),
        "m: line 1: found \"1\", expected \"2\""
    );
    assert!(first_file(&files("m", "1"), &files("n", "1")).unwrap().starts_with("files [\"m\"]"));
}
