//! The values that replace the body of a function.
use syn::{GenericArgument, PathArguments, Type};

/// Values of the type `ty` in Rust; none for a type without an obvious one. Paths are left out on purpose: tests remove
/// directories.
pub fn of(ty: &Type) -> Vec<String> {
    let strings = |values: &[&str]| values.iter().map(ToString::to_string).collect();
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => strings(&["()"]),
        Type::Reference(reference) => match &*reference.elem {
            Type::Slice(_) if reference.mutability.is_none() => strings(&["&[]"]),
            Type::Path(path) if path.path.is_ident("str") => strings(&["\"\""]),
            _ => Vec::new(),
        },
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return Vec::new() };
            match last.ident.to_string().as_str() {
                "bool" => strings(&["true", "false"]),
                "usize" | "u8" | "u16" | "u32" | "u64" | "isize" | "i8" | "i16" | "i32" | "i64" => {
                    strings(&["0", "1"])
                }
                "f32" | "f64" => strings(&["0.0", "1.0"]),
                "String" => strings(&["String::new()"]),
                "Vec" => strings(&["Vec::new()"]),
                "Option" => {
                    let some = argument(&last.arguments).map(of).unwrap_or_default();
                    std::iter::once("None".to_string())
                        .chain(some.iter().map(|v| format!("Some({v})")))
                        .collect()
                }
                "Result" => match argument(&last.arguments) {
                    None => strings(&["Ok(())"]),
                    Some(ty) => of(ty).iter().map(|value| format!("Ok({value})")).collect(),
                },
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}
