//! Seeds in TOML. TOML integers end at 2^63 - 1; a larger seed is a string.
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
    seed_value(*seed).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    seed_of(&Value::deserialize(from)?)
        .ok_or_else(|| D::Error::custom("expected a whole number from 0 to 2^64 - 1"))
}
