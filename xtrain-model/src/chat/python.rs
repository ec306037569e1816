//! Python's `json.dumps`, as the filter `tojson` of HF's templates.
use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use xtrain_tensor::faults::{self, Fault};

use super::limits::LimitedOutput;
use crate::json;

/// `tojson(value, indent=None, ensure_ascii=False, separators=None, sort_keys=False)` of HF's templates: `json.dumps`
/// with these arguments, without jinja's HTML escapes. Writes at most [`MAX_OUTPUT`](super::MAX_OUTPUT) bytes.
pub(super) fn tojson(value: &Value, indent: Option<Value>, arguments: &Kwargs) -> Result<Value, Error> {
    let indent = indent.filter(|v| !v.is_none()).or(arguments.get::<Option<Value>>("indent")?);
    let ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = arguments.get::<Option<Vec<String>>>("separators")?;
    arguments.assert_all_used()?;
    let refuse = |what: &'static str| Error::new(ErrorKind::InvalidOperation, what);
    if value.kind() == ValueKind::Undefined {
        return Err(refuse("tojson: an undefined value is not JSON"));
    }
    let indent = match indent.map(|v| (v.as_usize(), v)) {
        None => None,
        Some((Some(n), _)) if n <= 64 => Some(" ".repeat(n)),
        Some((_, v)) if v.as_str().is_some_and(|s| s.len() <= 64) => v.as_str().map(str::to_string),
        Some(_) => return Err(refuse("tojson: an indent of more than 64 spaces")),
    };
    let [item, key] = match separators {
        None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
        Some(pair) => pair.try_into().map_err(|_| refuse("tojson: separators must be two strings"))?,
    };
    let style = PythonStyle { item, key, indent, ascii, depth: 0, filled: false };
    let mut out = LimitedOutput::default();
    let mut to = Serializer::with_formatter(&mut out, style);
    let written = if sorted {
        // lists that contain each other many times take more memory as JSON values, so their text is limited first
        let fits = serde_json::to_writer(LimitedOutput::default(), value);
        let value = fits.and_then(|()| serde_json::to_value(value));
        value.and_then(|value| json::sorted(value).serialize(&mut to))
    } else {
        value.serialize(&mut to)
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(out.bytes).map(Value::from).map_err(|_| refuse("tojson: text that is not UTF-8"))
}

/// The formatting of `json.dumps`.
struct PythonStyle {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    depth: usize,
    /// Whether the innermost container has an item.
    filled: bool,
}

impl PythonStyle {
    fn line<W: ?Sized + Write>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        to.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| to.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.filled) = (self.depth + 1, false);
        to.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(to)?;
        }
        self.filled = !faults::on(Fault::EmptyListEndsItsParent);
        to.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.filled = true;
        if !first {
            to.write_all(self.item.as_bytes())?;
        }
        self.line(to)
    }
}

impl Formatter for PythonStyle {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.key.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        to.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return to.write_all(text.as_bytes());
        }
        for c in text.chars() {
            match c {
                ' '..='~' => to.write_all(&[c as u8])?,
                _ => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(to, "\\u{unit:04x}"))?,
            }
        }
        Ok(())
    }
}

/// Python's `repr` of a float. `None`: the value is none.
pub(super) fn float_of(value: &Value) -> Option<String> {
    if !value.is_number() || value.is_integer() {
        return None;
    }
    let x = f64::try_from(value.clone()).ok()?;
    Some(if x.is_nan() { "nan".into() } else { float(x) })
}

/// Python's `repr` of a number that is not NaN: scientific notation with at least two exponent digits below 1e-4 and
/// from 1e16.
fn float(x: f64) -> String {
    if x == 0.0 || x.is_infinite() || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_python() {
        for (x, want) in [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.000_012_34, "1.234e-05"),
            (-0.0, "-0.0"),
            (123_456_789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(x), want);
        }
    }
}
