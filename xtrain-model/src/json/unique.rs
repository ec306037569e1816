//! JSON values whose objects have each key once.
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses a value. Keys that an object has twice are an error.
pub(super) struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Unique)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(Error::custom(format_args!("duplicate field `{key:.60}`")));
            }
            all.insert(key, entries.next_value_seed(Unique)?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use crate::json::{found_at_column, from_unique};

    #[test]
    fn values_are_those_of_serde_json_and_repeated_keys_are_refused() {
        let text =
            r#"{"b": [1, -2, 0.5, 1e300, 18446744073709551615, "é\n", null, true, {}], "a": {"b": []}}"#;
        #[cfg(feature = "faults")]
        {
            use xtrain_tensor::faults::{self, Fault};
            assert!(faults::with(Fault::LastOfRepeatedKeys, || from_unique(r#"{"a": 1, "a": 2}"#)).is_ok());
        }
        assert_eq!(from_unique(text).unwrap(), serde_json::from_str::<serde_json::Value>(text).unwrap());
        for (text, want) in [
            (r#"{"a": 1, "b": 2, "a": 3}"#, "an object with the field `a` twice at column 20"),
            (r#"[{"b": {"c": 1, "\u0063": 1}}]"#, "an object with the field `c` twice at column"),
            ("{} x", "invalid JSON at column 4"),
        ] {
            let found = found_at_column(&from_unique(text).unwrap_err());
            assert!(found.starts_with(want), "{text}: {found}");
        }
    }
}
