//! String methods of Python, and filters with limited widths.
use std::slice::from_ref;

use minijinja::value::{Kwargs, Rest, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat;

use super::guard::is_cancelled;
use super::python;

/// Maximum indent, field width or precision.
const MAX_WIDTH: usize = 9999;

/// `value.name(args)` for methods that the engine does not have: those of Python's strings and dictionaries.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if is_cancelled() {
        return Err(Error::new(ErrorKind::InvalidOperation, "cancelled"));
    }
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let parts = |(before, part, after): (&str, &str, &str)| Value::from_iter([before, part, after]);
    match name {
        "format" => check_widths(text, args)?,
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            return Ok(Value::from(rest.unwrap_or(text)));
        }
        "partition" | "rpartition" => {
            let (part,): (&str,) = from_args(args)?;
            if part.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let first = name == "partition";
            let cut = if first { text.split_once(part) } else { text.rsplit_once(part) };
            return Ok(parts(match cut {
                Some((before, after)) => (before, part, after),
                None if first => (text, "", ""),
                None => ("", "", text),
            }));
        }
        _ => {}
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// The names of the engine's filters, which the limited filters call.
const UNLIMITED: [&str; 2] = ["unlimited_indent", "unlimited_format"];

/// Adds the methods and filters of this file to an engine.
pub(super) fn install(engine: &mut Environment<'static>) {
    engine.set_unknown_method_callback(method);
    engine.add_filter("string", |state: &mut State<'_, '_>, value: &Value| match python::float_of(value) {
        Some(float) => Ok(Value::from(float)),
        None => filters::string(state, value),
    });
    engine.add_filter(UNLIMITED[0], filters::indent);
    engine.add_filter(UNLIMITED[1], filters::format);
    engine.add_filter(
        "indent",
        |state: &mut State<'_, '_>, text: &Value, args: Rest<Value>, named: Kwargs| {
            let width = named.peek::<Option<Value>>("width")?;
            if args.iter().chain(&width).any(is_wide) {
                return Err(too_wide());
            }
            state.apply_filter(UNLIMITED[0], &[from_ref(text), &args[..], &[named.into()]].concat())
        },
    );
    engine.add_filter(
        "format",
        |state: &mut State<'_, '_>, text: &Value, args: Rest<Value>, named: Kwargs| {
            let given = named.args().map(|name| named.peek(name)).collect::<Result<Vec<Value>, Error>>()?;
            check_widths(text.as_str().unwrap_or_default(), &[&args[..], &given[..]].concat())?;
            let named = if given.is_empty() { vec![] } else { vec![named.into()] };
            state.apply_filter(UNLIMITED[1], &[from_ref(text), &args[..], &named[..]].concat())
        },
    );
}

/// Rejects a format with a number above [`MAX_WIDTH`] in the format or its arguments.
fn check_widths(format: &str, args: &[Value]) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit());
    let wide = numbers
        .filter(|digits| !digits.is_empty())
        .any(|digits| digits.parse::<usize>().map_or(true, |number| number > MAX_WIDTH));
    // a width may be an argument: %*d, {:{}}
    let given = (format.contains('*') || format.contains(":{")) && args.iter().any(is_wide);
    if wide || given { Err(too_wide()) } else { Ok(()) }
}

fn is_wide(number: &Value) -> bool {
    number.as_i64().is_some_and(|n| n > MAX_WIDTH as i64)
}

fn too_wide() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a width of more than {MAX_WIDTH}"))
}
