//! Parses one source file: the modules it declares, the items it defines, the paths it imports or names.
use syn::buffer::{Cursor, TokenBuffer};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility};

/// The content of one module, inline or a file.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// Modules declared here, in source order.
    pub(super) modules: Vec<Declared>,
    /// Names of the items defined here.
    pub(super) items: Vec<String>,
    /// Names of the types, traits and aliases defined here as `pub`.
    pub(super) public_types: Vec<String>,
    /// Names of the macros defined here.
    pub(super) macros: Vec<String>,
    /// `use` declarations, one per imported name.
    pub(super) imports: Vec<Import>,
    /// Paths of two or more segments in code, and names of invoked macros.
    pub(super) paths: Vec<Vec<String>>,
}

/// A `mod` declaration.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    /// The value of `#[path = ".."]`.
    pub(super) path: Option<String>,
    /// The content of an inline module. `None`: the module has its own file.
    pub(super) inline: Option<Scope>,
}

/// One name of a `use` declaration.
#[derive(Debug, Clone)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The local name. `None`: a glob import.
    pub(super) name: Option<String>,
}

/// Parses the text of a file. Items that exist only under `cfg(test)` are skipped.
pub(super) fn scan(text: &str) -> syn::Result<Scope> {
    let file = syn::parse_file(text)?;
    let mut scope = Scope::default();
    for item in file.items.iter().filter(|item| !test_only(attributes(item))) {
        scope.visit_item(item);
        scope.define(item);
    }
    Ok(scope)
}

impl Scope {
    /// Records an item of the module itself; items inside function bodies are only visited.
    fn define(&mut self, item: &Item) {
        let (name, vis, is_type) = match item {
            Item::Struct(x) => (&x.ident, &x.vis, true),
            Item::Enum(x) => (&x.ident, &x.vis, true),
            Item::Union(x) => (&x.ident, &x.vis, true),
            Item::Trait(x) => (&x.ident, &x.vis, true),
            Item::Type(x) => (&x.ident, &x.vis, true),
            Item::Fn(x) => (&x.sig.ident, &x.vis, false),
            Item::Const(x) => (&x.ident, &x.vis, false),
            Item::Static(x) => (&x.ident, &x.vis, false),
            Item::Macro(x) => {
                self.macros.extend(x.ident.as_ref().map(ToString::to_string));
                return;
            }
            _ => return,
        };
        self.items.push(name.to_string());
        if is_type && matches!(vis, Visibility::Public(_)) {
            self.public_types.push(name.to_string());
        }
    }

    fn import(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        let mut add = |last: Option<String>, name: Option<String>| {
            let path: Vec<String> = prefix.iter().cloned().chain(last.filter(|n| n != "self")).collect();
            let name = name.map(|n| if n == "self" { path.last().cloned().unwrap_or(n) } else { n });
            self.imports.push(Import { path, name });
        };
        match tree {
            UseTree::Name(x) => add(Some(x.ident.to_string()), Some(x.ident.to_string())),
            UseTree::Rename(x) => add(Some(x.ident.to_string()), Some(x.rename.to_string())),
            UseTree::Glob(_) => add(None, None),
            UseTree::Path(x) => {
                prefix.push(x.ident.to_string());
                self.import(prefix, &x.tree);
                prefix.pop();
            }
            UseTree::Group(x) => x.items.iter().for_each(|tree| self.import(prefix, tree)),
        }
    }

    /// Collects the paths in the arguments or the body of a macro, which syn does not parse.
    fn tokens(&mut self, mut at: Cursor) {
        while let Some((_, next)) = at.token_tree() {
            if let Some((inside, _, _, _)) = at.any_group() {
                self.tokens(inside);
                at = next;
                continue;
            }
            let Some((first, mut rest)) = at.ident() else {
                at = next;
                continue;
            };
            let mut path = vec![first.to_string()];
            while let Some((segment, next)) = colons(rest).and_then(Cursor::ident) {
                path.push(segment.to_string());
                rest = next;
            }
            if path.len() > 1 || punct(rest, '!').is_some() {
                self.paths.push(path);
            }
            at = rest;
        }
    }
}

impl<'ast> Visit<'ast> for Scope {
    fn visit_item(&mut self, item: &'ast Item) {
        if !test_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !test_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let inline = module.content.as_ref().map(|(_, items)| {
            let mut scope = Scope::default();
            for item in items.iter().filter(|item| !test_only(attributes(item))) {
                scope.visit_item(item);
                scope.define(item);
            }
            scope
        });
        let path = module.attrs.iter().find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
        self.modules.push(Declared { name: module.ident.to_string(), path, inline });
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.paths.push(call.path.segments.iter().map(|s| s.ident.to_string()).collect());
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}

fn punct(at: Cursor, want: char) -> Option<Cursor> {
    at.punct().filter(|(found, _)| found.as_char() == want).map(|(_, next)| next)
}

fn colons(at: Cursor) -> Option<Cursor> {
    punct(punct(at, ':')?, ':')
}

/// Whether a `cfg` attribute excludes the item from every build that is not a test.
fn test_only(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| attribute.parse_args::<Meta>().is_ok_and(|meta| without_test(&meta) == Some(false)))
}

/// The value of a `cfg` predicate outside tests. `None`: it depends on the platform or on features.
fn without_test(meta: &Meta) -> Option<bool> {
    let Meta::List(list) = meta else {
        return meta.path().is_ident("test").then_some(false);
    };
    let values: Vec<Option<bool>> = list
        .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
        .map(|inner| inner.iter().map(without_test).collect())
        .unwrap_or_default();
    if list.path.is_ident("not") {
        values.first().copied().flatten().map(|value| !value)
    } else if list.path.is_ident("all") {
        if values.contains(&Some(false)) { Some(false) } else { None }
    } else if values.iter().all(|value| *value == Some(false)) && !values.is_empty() {
        Some(false)
    } else {
        None
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(x) => &x.attrs,
        Item::Enum(x) => &x.attrs,
        Item::ExternCrate(x) => &x.attrs,
        Item::Fn(x) => &x.attrs,
        Item::ForeignMod(x) => &x.attrs,
        Item::Impl(x) => &x.attrs,
        Item::Macro(x) => &x.attrs,
        Item::Mod(x) => &x.attrs,
        Item::Static(x) => &x.attrs,
        Item::Struct(x) => &x.attrs,
        Item::Trait(x) => &x.attrs,
        Item::TraitAlias(x) => &x.attrs,
        Item::Type(x) => &x.attrs,
        Item::Union(x) => &x.attrs,
        Item::Use(x) => &x.attrs,
        _ => &[],
    }
}
