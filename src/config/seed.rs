//! Seeds in TOML. TOML integers end at 2^63 - 1; a larger seed is a string.
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use toml::Value;

/// The seed as a TOML value.
pub fn seed_value(seed: u64) -> Value {
    i64::try_from(seed).map_or_else(|_| Value::String(seed.to_string()), Value::Integer)
}

/// The seed in a TOML value. `None`: the value is not a seed.
pub(super) fn seed_of(value: &Value) -> Option<u64> {
    match value {
        Value::Integer(n) => u64::try_from(*n).ok(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

pub(super) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
    match i64::try_from(*seed) {
        Ok(seed) => to.serialize_i64(seed),
        Err(_) => to.serialize_str(&seed.to_string()),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    struct Seed;
    impl Visitor<'_> for Seed {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 to 2^64 - 1")
        }

        fn visit_i64<E: Error>(self, n: i64) -> Result<u64, E> {
            u64::try_from(n).map_err(E::custom)
        }

        fn visit_u64<E: Error>(self, n: u64) -> Result<u64, E> {
            Ok(n)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            text.parse().map_err(E::custom)
        }
    }
    from.deserialize_any(Seed)
}
