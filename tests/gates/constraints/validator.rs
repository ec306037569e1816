//! A validator of JSON schemas for the keywords of the test, on the parser of `serde_json`, without code of llguidance.
use serde_json::{Map, Value};

/// Whether `value` is valid under `schema`, whose definitions are in `root`.
pub(super) fn validate(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let Some(schema) = schema.as_object() else {
        return if *schema == Value::Bool(true) {
            Ok(())
        } else {
            Err(format!("{value}: no value is valid"))
        };
    };
    for (keyword, operand) in schema {
        let valid = match (keyword.as_str(), operand) {
            ("type", Value::Array(names)) => names.iter().any(|name| is_of(value, name.as_str().unwrap())),
            ("type", name) => is_of(value, name.as_str().unwrap()),
            ("enum", values) => values.as_array().unwrap().contains(value),
            ("const", only) => value == only,
            ("anyOf", schemas) => {
                schemas.as_array().unwrap().iter().any(|s| validate(value, s, root).is_ok())
            }
            ("allOf", schemas) => {
                schemas.as_array().unwrap().iter().all(|s| validate(value, s, root).is_ok())
            }
            ("$ref", path) => {
                let path = path.as_str().unwrap().strip_prefix('#').unwrap();
                validate(value, root.pointer(path).unwrap(), root)?;
                true
            }
            ("minimum", bound) => value.as_f64().is_none_or(|x| x >= bound.as_f64().unwrap()),
            ("maximum", bound) => value.as_f64().is_none_or(|x| x <= bound.as_f64().unwrap()),
            ("minLength", n) => {
                value.as_str().is_none_or(|s| s.chars().count() as u64 >= n.as_u64().unwrap())
            }
            ("maxLength", n) => {
                value.as_str().is_none_or(|s| s.chars().count() as u64 <= n.as_u64().unwrap())
            }
            ("minItems", n) => value.as_array().is_none_or(|a| a.len() as u64 >= n.as_u64().unwrap()),
            ("maxItems", n) => value.as_array().is_none_or(|a| a.len() as u64 <= n.as_u64().unwrap()),
            ("items", each) => {
                let first = schema.get("prefixItems").map_or(0, |first| first.as_array().unwrap().len());
                let items = value.as_array().into_iter().flatten().skip(first);
                items.into_iter().try_for_each(|item| validate(item, each, root))?;
                true
            }
            ("prefixItems", each) => {
                let pairs = value.as_array().into_iter().flatten().zip(each.as_array().unwrap());
                pairs.into_iter().try_for_each(|(item, each)| validate(item, each, root))?;
                true
            }
            ("required", names) => {
                let has = |object: &Map<String, Value>| {
                    names.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
                };
                value.as_object().is_none_or(has)
            }
            ("properties" | "additionalProperties", _) => {
                let object = value.as_object().into_iter().flatten();
                object.into_iter().try_for_each(|(name, value)| property(name, value, schema, root))?;
                true
            }
            ("$defs", _) => true,
            _ => panic!("the validator does not know {keyword:?}"),
        };
        if !valid {
            return Err(format!("{value} is not valid: {keyword}: {operand}"));
        }
    }
    Ok(())
}

fn property(name: &str, value: &Value, schema: &Map<String, Value>, root: &Value) -> Result<(), String> {
    let own = schema.get("properties").and_then(|all| all.get(name));
    own.or(schema.get("additionalProperties")).map_or(Ok(()), |schema| validate(value, schema, root))
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("the validator does not know the type {name:?}"),
    }
}

#[test]
fn the_validator_refuses_what_a_schema_does_not_allow() {
    use serde_json::json;
    let schema = json!({
        "type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}, "s": {"type": "string", "maxLength": 2},
            "a": {"type": "array", "items": {"enum": ["x", null]}, "minItems": 1}}
    });
    let check = |value| validate(&value, &schema, &schema).is_ok();
    assert!(check(json!({"n": 3})) && check(json!({"n": 5.0, "s": "éü", "a": ["x", null]})));
    let wrong = [
        json!({}),
        json!([]),
        json!({"n": 6}),
        json!({"n": 1.5}),
        json!({"n": "1"}),
        json!({"n": 1, "s": "abc"}),
        json!({"n": 1, "a": []}),
        json!({"n": 1, "a": ["y"]}),
        json!({"n": 1, "z": 1}),
    ];
    for value in wrong {
        assert!(!check(value.clone()), "{value}");
    }
}
