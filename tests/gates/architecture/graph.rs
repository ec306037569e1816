//! The import graph of a crate, between files.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use super::scan::{Import, Scope, scan};

/// The files of a crate and the imports between them.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Paths relative to the source directory, with `/`.
    pub(super) files: Vec<String>,
    /// For each file, the files that it imports and one imported path.
    pub(super) imports: Vec<BTreeMap<usize, String>>,
    /// The public types, with the file of each.
    pub(super) public_types: Vec<(String, usize)>,
}

struct Module {
    file: usize,
    parent: Option<usize>,
    children: Vec<(String, usize)>,
    items: HashSet<String>,
    macros: HashSet<String>,
    imports: Vec<Import>,
    paths: Vec<Vec<String>>,
}

/// What a path resolves to.
#[derive(Clone, Copy)]
enum Target {
    Item { file: usize },
    Module(usize),
}

impl Graph {
    /// Reads a crate from its root file (`src/lib.rs`).
    pub(super) fn read(root: &Path) -> Graph {
        let mut reader = Reader { src: root.parent().unwrap().to_path_buf(), ..Reader::default() };
        let file = reader.file(root);
        let directory = reader.src.clone();
        reader.module(scan_file(root), file, None, &directory);
        reader.finish()
    }

    /// The groups of files that import each other in a cycle, each with its shortest cycle.
    pub(super) fn cycles(&self) -> Vec<(BTreeSet<usize>, Vec<usize>)> {
        let reachable: Vec<BTreeSet<usize>> =
            (0..self.files.len()).map(|file| self.reachable(file)).collect();
        let mut found: BTreeMap<BTreeSet<usize>, Vec<usize>> = BTreeMap::new();
        for start in 0..self.files.len() {
            let Some(cycle) = self.shortest_cycle(start) else { continue };
            let group = reachable[start].iter().copied().filter(|&f| reachable[f].contains(&start)).collect();
            let best = found.entry(group).or_insert_with(|| cycle.clone());
            if cycle.len() < best.len() {
                *best = cycle;
            }
        }
        found.into_iter().collect()
    }

    /// The files that `start` reaches through one or more imports.
    fn reachable(&self, start: usize) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut queue = vec![start];
        while let Some(file) = queue.pop() {
            queue.extend(self.imports[file].keys().filter(|&&next| seen.insert(next)));
        }
        seen
    }

    fn shortest_cycle(&self, start: usize) -> Option<Vec<usize>> {
        let mut before = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(file) = queue.pop_front() {
            for &next in self.imports[file].keys() {
                if next == start {
                    let mut cycle = vec![start, file];
                    while *cycle.last()? != start {
                        cycle.push(before[cycle.last()?]);
                    }
                    cycle.reverse();
                    cycle.dedup();
                    return Some(cycle);
                }
                if let std::collections::hash_map::Entry::Vacant(entry) = before.entry(next) {
                    entry.insert(file);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// A cycle as text: `a.rs -> b.rs (path) -> a.rs (path)`.
    pub(super) fn describe(&self, cycle: &[usize]) -> String {
        let mut text = self.files[cycle[0]].clone();
        for pair in cycle.windows(2) {
            text += &format!(" -> {} ({})", self.files[pair[1]], self.imports[pair[0]][&pair[1]]);
        }
        text
    }
}

#[derive(Default)]
struct Reader {
    src: PathBuf,
    graph: Graph,
    modules: Vec<Module>,
}

impl Reader {
    fn file(&mut self, path: &Path) -> usize {
        let relative = path.strip_prefix(&self.src).unwrap_or(path);
        self.graph.files.push(relative.to_string_lossy().replace('\\', "/"));
        self.graph.imports.push(BTreeMap::new());
        self.graph.files.len() - 1
    }

    /// Adds a module and its children, whose files are in `directory`.
    fn module(&mut self, scope: Scope, file: usize, parent: Option<usize>, directory: &Path) -> usize {
        self.graph.public_types.extend(scope.public_types.into_iter().map(|name| (name, file)));
        let id = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            children: Vec::new(),
            items: scope.items.into_iter().collect(),
            macros: scope.macros.into_iter().collect(),
            imports: scope.imports,
            paths: scope.paths,
        });
        for declared in scope.modules {
            let child = if let Some(inline) = declared.inline {
                self.module(inline, file, Some(id), &directory.join(&declared.name))
            } else {
                let flat = directory.join(format!("{}.rs", declared.name));
                let path = match declared.path {
                    Some(path) => directory.join(path),
                    None if flat.exists() => flat,
                    None => directory.join(&declared.name).join("mod.rs"),
                };
                let file = self.file(&path);
                self.module(scan_file(&path), file, Some(id), &directory.join(&declared.name))
            };
            self.modules[id].children.push((declared.name, child));
        }
        id
    }

    fn finish(mut self) -> Graph {
        for id in 0..self.modules.len() {
            let imports = self.modules[id].imports.iter().map(|import| import.path.clone());
            for path in imports.chain(self.modules[id].paths.iter().cloned()).collect::<Vec<_>>() {
                let Some(to) = self.resolve(id, &path).or_else(|| self.textual_macro(id, &path)) else {
                    continue;
                };
                let from = self.modules[id].file;
                let to = match to {
                    Target::Item { file } => file,
                    Target::Module(module) => self.modules[module].file,
                };
                if from != to {
                    self.graph.imports[from].entry(to).or_insert_with(|| path.join("::"));
                }
            }
        }
        self.graph
    }

    /// Resolves a path that is written in `module`. `None`: the path leads to another crate.
    fn resolve(&self, module: usize, path: &[String]) -> Option<Target> {
        self.lookup(module, path, &mut HashSet::new())
    }

    /// As [`Reader::resolve`]. `seen` holds the lookups in progress: two globs may import each other.
    fn lookup(&self, module: usize, path: &[String], seen: &mut HashSet<(usize, String)>) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.descend(0, rest, seen),
            "self" => self.descend(module, rest, seen),
            "super" => self.descend(self.modules[module].parent?, rest, seen),
            _ => self.descend(module, path, seen),
        }
    }

    /// Resolves a path relative to `module`: an item defined there, an import, or a child module, in this order. A
    /// child comes first if more segments follow.
    fn descend(&self, module: usize, path: &[String], seen: &mut HashSet<(usize, String)>) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else { return Some(Target::Module(module)) };
        if first == "super" {
            return self.descend(self.modules[module].parent?, rest, seen);
        }
        let here = &self.modules[module];
        let children: Vec<usize> =
            here.children.iter().filter(|(name, _)| name == first).map(|&(_, child)| child).collect();
        if rest.is_empty() || children.is_empty() {
            if here.items.contains(first) || here.macros.contains(first) {
                return Some(Target::Item { file: here.file });
            }
            if seen.insert((module, first.clone()))
                && let Some(target) = self.imported(module, first, rest, seen)
            {
                return Some(target);
            }
        }
        children.into_iter().find_map(|child| self.descend(child, rest, seen))
    }

    /// Resolves `name`, followed by `rest`, through the imports of a module: first by name, then through globs.
    fn imported(
        &self,
        module: usize,
        name: &str,
        rest: &[String],
        seen: &mut HashSet<(usize, String)>,
    ) -> Option<Target> {
        let imports = &self.modules[module].imports;
        for import in imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            let path = [&import.path, rest].concat();
            if let Some(target) = self.lookup(module, &path, seen) {
                return Some(target);
            }
        }
        let path = [&[name.to_string()], rest].concat();
        imports.iter().filter(|import| import.name.is_none()).find_map(|glob| {
            let Some(Target::Module(target)) = self.lookup(module, &glob.path, seen) else { return None };
            self.descend(target, &path, seen)
        })
    }

    /// A macro that an enclosing module defines before this module: visible without an import.
    fn textual_macro(&self, module: usize, path: &[String]) -> Option<Target> {
        let [name] = path else { return None };
        let mut module = self.modules[module].parent;
        while let Some(id) = module {
            if self.modules[id].macros.contains(name) {
                return Some(Target::Item { file: self.modules[id].file });
            }
            module = self.modules[id].parent;
        }
        None
    }
}

fn scan_file(path: &Path) -> Scope {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    scan(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
