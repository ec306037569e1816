//! Copies the repository, writes all mutants into the copy and compiles its tests.
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::instrument::{Instrumented, instrument};
use crate::points::{self, Operators, Point};
use crate::sample::Selection;
use crate::scratch::{Scratch, write_if_changed};

/// A test binary and the directory in which cargo runs it.
pub type Binary = (String, String);

/// Writes `mutants.json` and `binaries.json`.
pub fn build(repository: &Path, scratch: &Scratch, selection: &Selection) {
    let tree = scratch.tree();
    let files = files(repository);
    let modules = selection.modules;
    let mut sources = mutated_files(repository, &files, selection);
    selection.choose(sources.values_mut().flat_map(|(_, points)| points));
    for file in files.iter().filter(|file| !sources.contains_key(*file) && !is_root(file, modules)) {
        write_if_changed(
            &tree.join(file),
            &fs::read(repository.join(file)).expect("a file of the repository"),
        );
    }
    let all: Vec<_> = sources.values().flat_map(|(_, points)| points).flat_map(|p| &p.mutants).collect();
    let count = all.iter().map(|(mutant, _)| mutant.id).max().unwrap_or(0) + 1;
    let switch = include_str!("switch.rs").replace("COUNT: usize = 0", &format!("COUNT: usize = {count}"));
    for crate_directory in crates(modules) {
        let root = format!("{crate_directory}src/lib.rs");
        let code = fs::read_to_string(repository.join(&root)).expect("the root of a crate")
            + "\nmod mutant_switch;\n";
        write_if_changed(&tree.join(root), code.as_bytes());
        write_if_changed(&tree.join(format!("{crate_directory}src/mutant_switch.rs")), switch.as_bytes());
    }
    // by key: numbers change with the sources
    let known: HashSet<String> = scratch.read("dropped.json").unwrap_or_default();
    let mut dropped: HashSet<u32> =
        all.iter().filter(|(mutant, _)| known.contains(&mutant.key)).map(|(mutant, _)| mutant.id).collect();
    loop {
        let mut instrumented = HashMap::new();
        for (file, (source, points)) in &sources {
            let with_mutants = instrument(source, points, &dropped);
            write_if_changed(&tree.join(file), with_mutants.code.as_bytes());
            instrumented.insert(file.clone(), with_mutants);
        }
        let mut mutants: Vec<_> = all.iter().map(|(mutant, _)| mutant).collect();
        mutants.retain(|mutant| !dropped.contains(&mutant.id));
        mutants.sort_by_key(|mutant| mutant.id);
        scratch.write("mutants.json", &mutants);
        match compile(&tree, &instrumented) {
            Ok(binaries) => {
                println!("{} mutants; {} others do not compile", mutants.len(), dropped.len());
                scratch.write("binaries.json", &binaries);
                return scratch.forget();
            }
            Err(blamed) => {
                println!("{} mutants do not compile", blamed.len());
                dropped.extend(blamed);
                let keys = all.iter().filter(|(mutant, _)| dropped.contains(&mutant.id));
                scratch.write("dropped.json", &keys.map(|(mutant, _)| &mutant.key).collect::<Vec<_>>());
            }
        }
    }
}

/// The keys of all mutants of a selection, drawn or not.
pub fn keys(repository: &Path, selection: &Selection) -> HashSet<String> {
    let sources = mutated_files(repository, &files(repository), selection);
    let mutants = sources.into_values().flat_map(|(_, points)| points).flat_map(|point| point.mutants);
    mutants.map(|(mutant, _)| mutant.key).collect()
}

/// The directories of the crates of `modules`, with a slash; that of the crate `xtrain` is empty.
fn crates(modules: &[&str]) -> HashSet<String> {
    modules.iter().map(|module| module[..module.find("src/").unwrap_or(0)].to_string()).collect()
}

fn is_root(file: &str, modules: &[&str]) -> bool {
    crates(modules).iter().any(|directory| file == format!("{directory}src/lib.rs"))
}

/// The files of the repository that git does not ignore.
fn files(repository: &Path) -> Vec<String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).current_dir(repository).output().expect("git runs");
    let text = String::from_utf8(output.stdout).expect("names are UTF-8");
    let files = text.split('\0').filter(|file| !file.is_empty() && !file.starts_with("tests/mutants/"));
    files.filter(|file| repository.join(file).is_file()).map(str::to_string).collect()
}

/// The sources with mutants and their points. Modules that only tests compile are left out.
fn mutated_files(
    repository: &Path,
    files: &[String],
    selection: &Selection,
) -> HashMap<String, (String, Vec<Point>)> {
    let modules = selection.modules;
    let inside = |file: &&String| modules.iter().any(|module| file.starts_with(module));
    let mut chosen: Vec<_> =
        files.iter().filter(|file| file.ends_with(".rs") && !is_root(file, modules)).collect();
    chosen.retain(|file| inside(file));
    chosen.sort();
    let (mut all, mut only_tests, mut next) = (HashMap::new(), Vec::new(), 1);
    for file in chosen {
        let source = fs::read_to_string(repository.join(file)).expect("a source file");
        let found = points::find(file, &source, selection.operators(), next);
        next += found.points.iter().map(|point| point.mutants.len() as u32).sum::<u32>();
        let directory = file.trim_end_matches("mod.rs").trim_end_matches(".rs").trim_end_matches('/');
        only_tests.extend(found.test_modules.iter().map(|name| format!("{directory}/{name}")));
        all.insert(file.clone(), (source, found.points));
    }
    // the modules of the crate root that only tests compile
    only_tests.extend(crates(modules).iter().flat_map(|directory| {
        let root = format!("{directory}src/lib.rs");
        let source = fs::read_to_string(repository.join(&root)).expect("the root of a crate");
        let names = points::find(&root, &source, Operators::Basic, 0).test_modules;
        names.into_iter().map(|name| format!("{directory}src/{name}")).collect::<Vec<_>>()
    }));
    all.retain(|file, _| {
        !only_tests
            .iter()
            .any(|module| *file == format!("{module}.rs") || file.starts_with(&format!("{module}/")))
    });
    all
}

/// Compiles the tests. Returns the test binaries, or the mutants that do not compile.
fn compile(tree: &Path, instrumented: &HashMap<String, Instrumented>) -> Result<Vec<Binary>, HashSet<u32>> {
    let tests = ["--lib", "--test", "transcripts", "--test", "records", "--test", "gates"];
    let arguments = ["test", "--no-run", "--locked", "--workspace", "--features", "faults"];
    let mut command = Command::new("cargo");
    command.args(arguments).args(tests).args(["--no-fail-fast", "--message-format=json"]).current_dir(tree);
    let output = command.stderr(Stdio::inherit()).output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut binaries, mut blamed, mut rest) = (Vec::new(), HashSet::new(), String::new());
    for message in messages {
        if let Some(binary) = message["executable"].as_str()
            && message["profile"]["test"] == true
        {
            let manifest = Path::new(message["manifest_path"].as_str().expect("a manifest"));
            let directory = manifest.parent().expect("a manifest has a directory");
            binaries.push((binary.to_string(), directory.display().to_string()));
        }
        if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
            let ids = blame(&message["message"], instrumented);
            if ids.is_empty() {
                rest += message["message"]["rendered"].as_str().unwrap_or_default();
            }
            blamed.extend(ids);
        }
    }
    match output.status.success() {
        true => Ok(binaries),
        false if blamed.is_empty() => panic!("the copy does not compile:\n{rest}"),
        false => Err(blamed),
    }
}

/// The mutants that an error is about: at its places, else on the lines of its places.
fn blame(message: &Value, instrumented: &HashMap<String, Instrumented>) -> Vec<u32> {
    let spans = message["spans"].as_array().cloned().unwrap_or_default();
    let places = |primary: bool| {
        spans.iter().filter(move |span| span["is_primary"] == primary).filter_map(|span| {
            let file = instrumented.get(span["file_name"].as_str()?)?;
            Some((file, span["byte_start"].as_u64()? as usize))
        })
    };
    let searches = [Instrumented::blamed, Instrumented::on_line];
    let found = searches.iter().flat_map(|search| {
        [true, false]
            .map(|primary| places(primary).flat_map(|(file, at)| search(file, at)).collect::<Vec<_>>())
    });
    found.into_iter().find(|ids| !ids.is_empty()).unwrap_or_default()
}
