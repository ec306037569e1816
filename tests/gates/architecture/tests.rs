//! The checks of the architecture fail on planted violations.
use super::graph::Graph;
use super::{cycles, default_bodies, duplicate_types, upward_imports};
use crate::cli::Scratch;

/// Reads a crate of these files, each a path relative to `src` and its text.
fn graph(name: &str, files: &[(&str, &str)]) -> Graph {
    let scratch = Scratch::new(&format!("architecture-{name}"));
    for (path, text) in files {
        scratch.file(&format!("src/{path}"), text);
    }
    Graph::read(&scratch.0.join("src/lib.rs"))
}

/// The imports of a graph as `from -> to`, in order.
fn imports(graph: &Graph) -> Vec<String> {
    let mut found = Vec::new();
    for (from, imports) in graph.imports.iter().enumerate() {
        found.extend(imports.keys().map(|&to| format!("{} -> {}", graph.files[from], graph.files[to])));
    }
    found.sort();
    found
}

#[test]
fn a_planted_cycle_is_found_and_printed() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "use super::c; pub struct B(c::C);"),
        ("c.rs", "pub struct C; fn f() { let _ = crate::a::A; }"),
    ];
    let found = cycles(&graph("cycle", &files));
    assert_eq!(found, ["3 files: a.rs -> b.rs (crate::b::B) -> c.rs (super::c) -> a.rs (crate::a::A)"]);
    let open = [files[0], files[1], files[2], ("c.rs", "pub struct C;")];
    assert!(cycles(&graph("open", &open)).is_empty());
}

#[test]
fn an_import_resolves_to_the_file_that_defines_the_item() {
    let files = [
        ("lib.rs", "mod error; mod ops; mod tensor; pub use tensor::Tensor; pub use error::*;"),
        ("error.rs", "pub struct Error;"),
        ("tensor.rs", "use crate::Error; pub struct Tensor;"),
        ("ops/mod.rs", "mod add; mod mul; pub use add::add; pub use mul::product as mul;"),
        ("ops/add.rs", "use super::mul; use crate::Tensor; pub fn add() {}"),
        ("ops/mul.rs", "use crate::{self as root, tensor::*}; pub fn product() { root::Tensor; }"),
    ];
    let want = [
        "lib.rs -> error.rs",
        "lib.rs -> tensor.rs",
        "ops/add.rs -> ops/mul.rs",
        "ops/add.rs -> tensor.rs",
        "ops/mod.rs -> ops/add.rs",
        "ops/mod.rs -> ops/mul.rs",
        "ops/mul.rs -> lib.rs",
        "ops/mul.rs -> tensor.rs",
        "tensor.rs -> error.rs",
    ];
    assert_eq!(imports(&graph("resolve", &files)), want);
}

#[test]
fn paths_in_code_and_in_macros_are_imports() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
        ("a.rs", "fn f() { crate::b::g(); assert!(super::c::H > 0); } impl crate::d::D for u8 {}"),
        ("b.rs", "macro_rules! m { () => { $crate::e::e() } } pub fn g() {}"),
        ("c.rs", "pub const H: u8 = 1;"),
        ("d.rs", "pub trait D {}"),
        ("e.rs", "pub fn e() { let text = \"crate::a\"; } /* crate::a */"),
    ];
    let want = ["a.rs -> b.rs", "a.rs -> c.rs", "a.rs -> d.rs", "b.rs -> e.rs"];
    assert_eq!(imports(&graph("paths", &files)), want);
}

#[test]
fn tests_and_other_crates_are_not_imports() {
    let files = [
        (
            "lib.rs",
            "mod a; mod b; #[cfg(all(test, feature = \"x\"))] mod only; #[cfg(any(test, feature = \"x\"))] mod c;",
        ),
        ("a.rs", "use std::fs; use half::bf16; #[cfg(test)] mod tests { use crate::b::B; }"),
        ("b.rs", "#[cfg(test)] use crate::a::A; #[cfg(not(test))] use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C;"),
    ];
    assert_eq!(imports(&graph("tests", &files)), ["b.rs -> c.rs"]);
}

#[test]
fn a_planted_upward_import_is_found() {
    let files = [
        ("lib.rs", "mod high; mod low;"),
        ("low.rs", "use crate::high::High; pub struct Low;"),
        ("high/mod.rs", "use crate::low::Low; pub struct High;"),
    ];
    let graph = graph("layers", &files);
    let found = upward_imports(&graph, &[("low.rs", 0), ("high/", 1), ("gone.rs", 1)]);
    let want = [
        "low.rs (layer 0) imports high/mod.rs (layer 1): crate::high::High",
        "gone.rs: no file belongs to this entry",
    ];
    assert_eq!(found, want);
    let found = upward_imports(&graph, &[("low.rs", 0)]);
    assert_eq!(
        found,
        [
            "high/mod.rs: has no layer",
            "low.rs (layer 0) imports high/mod.rs (above all layers): crate::high::High",
        ]
    );
}

#[test]
fn a_public_type_that_two_files_define_is_found() {
    let files = |name| {
        let text = "#[cfg(unix)] pub struct Twice; #[cfg(not(unix))] pub struct Twice; pub type Error = ();";
        [("lib.rs", "mod a; pub(crate) struct Private;"), ("a.rs", text)]
            .map(|(path, text)| (path, text, name))
    };
    let read = |name| graph(name, &files(name).map(|(path, text, _)| (path, text)));
    assert!(duplicate_types(&[("one", read("types-1"))]).is_empty());
    let found = duplicate_types(&[("one", read("types-2")), ("two", read("types-3"))]);
    assert_eq!(found, ["Twice: one/src/a.rs, two/src/a.rs"]);
}

#[test]
fn a_default_body_is_found() {
    let text = "trait Other { fn f() {} } trait Backend { fn add(&self); fn mul(&self) { self.add() } }";
    assert_eq!(default_bodies(text, "Backend"), ["mul"]);
}
