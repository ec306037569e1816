//! The layers of each crate. No file imports another file in a cycle or from a higher layer, each public type name is
//! defined once, and each backend implements every operation.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

mod graph;
mod scan;
mod tests;

use graph::Graph;

/// A crate and its layers. A file may import files of its own layer and of lower layers. The longest matching entry
/// decides; an entry that ends with `/` covers a directory. The crate root (`lib.rs`) is above all layers.
struct Crate {
    directory: &'static str,
    layers: &'static [(&'static str, u32)],
}

const CRATES: [Crate; 5] = [
    Crate {
        directory: "xtrain-comm",
        layers: &[("communicator.rs", 0), ("single.rs", 1), ("threads.rs", 1)],
    },
    Crate {
        directory: "xtrain-tensor",
        layers: &[
            // numbers, errors, random numbers
            ("dtype.rs", 0),
            ("error.rs", 0),
            ("faults.rs", 0),
            ("dd.rs", 0),
            ("fma.rs", 0),
            ("math.rs", 0),
            ("portable.rs", 0),
            ("rng.rs", 0),
            ("normal.rs", 0),
            ("tensor_core.rs", 0),
            ("rope_scaling.rs", 0),
            ("huge_page_alloc.rs", 0),
            ("lock.rs", 0),
            ("sync.rs", 0),
            // resources of a device: threads, instruction set, memory, the GPU runtime
            ("device/", 1),
            ("device/mod.rs", 2),
            ("tensor.rs", 3),
            // operand types
            ("operands/", 4),
            // the trait of the operations
            ("backend.rs", 5),
            ("compose.rs", 5),
            // its implementations
            ("reference/", 6),
            ("cpu/", 6),
            ("gpu/", 6),
            ("gpu.rs", 6),
            ("host.rs", 6),
            ("softmax.rs", 7),
            ("sliced_adamw.rs", 7),
            ("gpu_peers.rs", 7),
            ("dispatch.rs", 7),
            // checks
            ("ops/", 8),
            ("testing.rs", 8),
            ("testing/", 8),
        ],
    },
    Crate {
        directory: "xtrain-model",
        layers: &[
            ("error.rs", 0),
            ("json.rs", 0),
            ("json/", 0),
            ("durable.rs", 0),
            ("third_party.rs", 0),
            ("block_quants.rs", 0),
            ("k_quants.rs", 0),
            ("iq4_quants.rs", 0),
            ("temporary.rs", 0),
            ("quant.rs", 0),
            ("config.rs", 1),
            ("rope_divisors.rs", 2),
            ("kept_fields.rs", 2),
            ("tokenizer/", 1),
            // parameters
            ("param.rs", 2),
            ("params.rs", 2),
            ("rows.rs", 2),
            ("chat/", 2),
            // the forward pass
            ("functional.rs", 3),
            ("kv.rs", 3),
            ("model.rs", 3),
            ("data/", 3),
            // the backward pass
            ("grads.rs", 4),
            ("autograd.rs", 4),
            ("prefix_tree.rs", 4),
            ("example.rs", 4),
            ("batch/", 4),
            ("batch.rs", 4),
            ("backward.rs", 4),
            ("objective.rs", 4),
            ("mix.rs", 4),
            ("tasks/", 4),
            ("rl/", 4),
            // a step of several processes: the tree of shards, slices of the parameters
            ("shards.rs", 4),
            ("slices.rs", 4),
            ("step_examples.rs", 4),
            // an optimizer step
            ("optim.rs", 5),
            ("processes.rs", 5),
            ("exchange.rs", 5),
            ("gpu_exchange.rs", 5),
            ("process_group.rs", 5),
            ("process_group/", 5),
            ("step_sum.rs", 5),
            ("schedule.rs", 5),
            ("trainer.rs", 5),
            // files
            ("checkpoint/", 6),
            ("export_source.rs", 6),
            ("store_error.rs", 7),
            ("hf/", 8),
            ("gguf/", 8),
            ("store/", 9),
            ("export/", 10),
        ],
    },
    Crate {
        directory: "xtrain-decode",
        layers: &[
            ("sampler/", 0),
            ("constraint.rs", 1),
            ("error.rs", 1),
            ("storage.rs", 1),
            ("tensor_bytes.rs", 1),
            ("cache/", 2),
            ("offload/", 3),
            ("prefix_file/", 3),
            // requests, sequences, plans and completions
            ("rollout/", 3),
            ("rollout/scheduler/", 4),
            ("rollout/runner.rs", 4),
            ("rollout/engine.rs", 5),
            // functions over an engine, and the naive oracle
            ("rollout/fronts.rs", 6),
            ("rollout/naive.rs", 6),
            ("rollout/mod.rs", 7),
        ],
    },
    Crate {
        directory: "",
        layers: &[
            ("build_info.rs", 0),
            ("standard_error.rs", 0),
            ("config/", 0),
            ("report/", 0),
            ("rewards/", 0),
            ("grammar/", 0),
            ("rollout_file.rs", 0),
            ("memory_limit.rs", 0),
            ("mpi.rs", 0),
            ("memory.rs", 1),
            ("training/", 1),
            ("run/", 1),
            ("training.rs", 2),
            ("choices.rs", 2),
            ("evaluate.rs", 2),
            ("verify/", 2),
            ("grpo/", 3),
            ("cli/", 4),
        ],
    },
];

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(krate: &Crate) -> Graph {
    Graph::read(&workspace().join(krate.directory).join("src/lib.rs"))
}

/// The shortest cycle of each group of files that import each other, as text.
fn cycles(graph: &Graph) -> Vec<String> {
    graph
        .cycles()
        .iter()
        .map(|(group, cycle)| format!("{} files: {}", group.len(), graph.describe(cycle)))
        .collect()
}

/// The imports from a higher layer, the files without a layer and the entries without a file, as text.
fn upward_imports(graph: &Graph, layers: &[(&str, u32)]) -> Vec<String> {
    let entry = |file: &str| {
        let covers = |name: &str| file == name || (name.ends_with('/') && file.starts_with(name));
        layers.iter().filter(|(name, _)| covers(name)).max_by_key(|(name, _)| name.len())
    };
    let mut problems = Vec::new();
    for (from, imports) in graph.imports.iter().enumerate() {
        let file = &graph.files[from];
        if file == "lib.rs" {
            continue;
        }
        let Some((_, layer)) = entry(file) else {
            problems.push(format!("{file}: has no layer"));
            continue;
        };
        for (&to, path) in imports {
            let other = &graph.files[to];
            if entry(other).is_none_or(|(_, above)| above > layer) {
                let above =
                    entry(other).map_or("above all layers".to_string(), |(_, n)| format!("layer {n}"));
                problems.push(format!("{file} (layer {layer}) imports {other} ({above}): {path}"));
            }
        }
    }
    for name in layers.iter().filter(|e| !graph.files.iter().any(|file| entry(file) == Some(*e))) {
        problems.push(format!("{}: no file belongs to this entry", name.0));
    }
    problems
}

/// The names of public types that more than one file defines, as text. `Error` and `Result` are exempt: each crate
/// and each area has its own, and callers write them with their module.
fn duplicate_types(graphs: &[(&str, Graph)]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (directory, graph) in graphs {
        for (name, file) in &graph.public_types {
            let place = Path::new(directory).join("src").join(&graph.files[*file]);
            let places = places.entry(name).or_default();
            let place = place.to_string_lossy().into_owned();
            // variants of one type for different platforms are in one file
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !["Error", "Result"].contains(name));
    places.into_iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

/// The methods of a trait that have a default body.
fn default_bodies(text: &str, name: &str) -> Vec<String> {
    let file = syn::parse_file(text).unwrap();
    let found = file.items.into_iter().find_map(|item| match item {
        syn::Item::Trait(item) if item.ident == name => Some(item),
        _ => None,
    });
    let found = found.unwrap_or_else(|| panic!("no trait {name}"));
    let methods = found.items.into_iter().filter_map(|item| match item {
        syn::TraitItem::Fn(method) if method.default.is_some() => Some(method.sig.ident.to_string()),
        _ => None,
    });
    methods.collect()
}

#[track_caller]
fn none(what: &str, problems: &[String]) {
    assert!(problems.is_empty(), "{what}: {}\n  {}", problems.len(), problems.join("\n  "));
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    let found = CRATES.iter().flat_map(|krate| {
        cycles(&read(krate))
            .into_iter()
            .map(|cycle| format!("{}: {cycle}", Path::new(krate.directory).display()))
    });
    none("import cycles", &found.collect::<Vec<_>>());
}

#[test]
fn no_file_imports_a_higher_layer() {
    let found = CRATES.iter().flat_map(|krate| {
        let problems = upward_imports(&read(krate), krate.layers);
        problems.into_iter().map(|p| format!("{}: {p}", krate.directory))
    });
    none("violations of the layers", &found.collect::<Vec<_>>());
}

#[test]
fn each_public_type_name_is_defined_once() {
    let graphs: Vec<_> = CRATES.iter().map(|krate| (krate.directory, read(krate))).collect();
    none("public types with the same name", &duplicate_types(&graphs));
}

/// Without default bodies, a backend that lacks an operation does not compile.
#[test]
fn the_backend_traits_have_no_default_bodies() {
    let path = workspace().join("xtrain-tensor/src/backend.rs");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for name in ["Backend", "RowOps", "SharedOps"] {
        none(&format!("methods of {name} with a default body"), &default_bodies(&text, name));
    }
}
