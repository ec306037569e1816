//! Finds the points of a source file that are mutated, and the mutants of each.
use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Pat, ReturnType, Signature, UnOp};

use crate::values;

/// One change of the source.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mutant {
    pub id: u32,
    pub file: String,
    pub line: usize,
    /// File, function and change: identifies the mutant after other lines of the file have changed.
    pub key: String,
}

/// A place of the source and the codes that replace it, one per mutant.
#[derive(Debug)]
pub struct Point {
    pub range: Range<usize>,
    /// The point is a function body: `range` is empty and each code is returned.
    pub body: bool,
    pub mutants: Vec<(Mutant, String)>,
}

/// What a file contains: its points and the names of the modules that only tests compile.
#[derive(Debug, Default)]
pub struct Found {
    pub points: Vec<Point>,
    pub test_modules: Vec<String>,
}

/// The points of `source`. Mutants are numbered from `first`. An outer point precedes the points inside it.
pub fn find(file: &str, source: &str, first: u32) -> Found {
    let parsed = syn::parse_file(source).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut finder = Finder {
        file,
        source,
        next: first,
        functions: Vec::new(),
        keys: HashMap::new(),
        found: Found::default(),
    };
    finder.visit_file(&parsed);
    finder.found
}

struct Finder<'s> {
    file: &'s str,
    source: &'s str,
    next: u32,
    /// The type and the functions around the current node.
    functions: Vec<String>,
    keys: HashMap<String, u32>,
    found: Found,
}

impl<'s> Finder<'s> {
    fn text(&self, node: &impl Spanned) -> &'s str {
        &self.source[node.span().byte_range()]
    }

    fn add(&mut self, node: &impl Spanned, body: bool, changes: Vec<(String, String)>) {
        let mut range = node.span().byte_range();
        if body {
            range = range.start + 1..range.start + 1;
        }
        let line = node.span().start().line;
        let mutants = changes.into_iter().map(|(change, code)| {
            let mut key = format!("{}: {}: {change}", self.file, self.functions.join("::"));
            let count = self.keys.entry(key.clone()).or_default();
            *count += 1;
            if *count > 1 {
                key += &format!(" #{count}");
            }
            self.next += 1;
            (Mutant { id: self.next - 1, file: self.file.to_string(), line, key }, code)
        });
        let mutants = mutants.collect();
        self.found.points.push(Point { range, body, mutants });
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if only_tests(attributes) || signature.constness.is_some() {
            return;
        }
        self.functions.push(signature.ident.to_string());
        let body: String = self.text(block).split_whitespace().collect();
        let values = match &signature.output {
            ReturnType::Default if body == "{}" => Vec::new(),
            ReturnType::Default => vec![String::new()],
            ReturnType::Type(_, ty) => values::of(ty),
        };
        let changes = values.into_iter().filter(|value| body != format!("{{{value}}}").replace(' ', ""));
        let changes: Vec<_> = changes.map(|value| (format!("body -> {{{value}}}"), value)).collect();
        if !changes.is_empty() {
            self.add(block, true, changes);
        }
        self.visit_block(block);
        self.functions.pop();
    }

    /// The two operands of a binary expression with each of `operators` between them.
    fn replace_operator(&mut self, node: &syn::ExprBinary, operators: &[&str]) {
        let (left, right) = (self.text(&node.left), self.text(&node.right));
        let old = self.text(&node.op);
        let (head, tail) = (ends(left, false), ends(right, true));
        let changes = operators
            .iter()
            .map(|new| (format!("{head} {old} {tail} -> {new}"), format!("({left}) {new} ({right})")));
        self.add(node, false, changes.collect());
    }
}

/// At most 40 characters of the beginning or of the end of `code`, on one line.
fn ends(code: &str, beginning: bool) -> String {
    let line = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = line.chars().count();
    match count > 40 {
        false => line,
        true if beginning => line.chars().take(40).chain("…".chars()).collect(),
        true => "…".chars().chain(line.chars().skip(count - 40)).collect(),
    }
}

fn only_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let meta = attribute.meta.span().source_text().unwrap_or_default();
        meta == "test" || meta.starts_with("cfg(") && !meta.contains("not(") && meta.contains("test")
    })
}

/// A chain of conditions that binds names: its operators cannot be replaced.
fn binds(node: &Expr) -> bool {
    match node {
        Expr::Let(_) => true,
        Expr::Binary(node) => matches!(node.op, BinOp::And(_)) && (binds(&node.left) || binds(&node.right)),
        _ => false,
    }
}

/// The operators that replace `op`.
fn others(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) | BinOp::Mul(_) => &["+"],
        BinOp::Div(_) | BinOp::Rem(_) => &["*"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitXor(_) | BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) | BinOp::MulAssign(_) => &["+="],
        BinOp::DivAssign(_) | BinOp::RemAssign(_) => &["*="],
        BinOp::BitXorAssign(_) | BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_fn(&mut self, node: &'a syn::ItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_impl_item_fn(&mut self, node: &'a syn::ImplItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_trait_item_fn(&mut self, node: &'a syn::TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(&node.attrs, &node.sig, block);
        }
    }

    fn visit_item_impl(&mut self, node: &'a syn::ItemImpl) {
        if !only_tests(&node.attrs) {
            let name = self.text(&node.self_ty).split('<').next().unwrap_or_default().to_string();
            self.functions.push(name);
            visit::visit_item_impl(self, node);
            self.functions.pop();
        }
    }

    fn visit_item_mod(&mut self, node: &'a syn::ItemMod) {
        match only_tests(&node.attrs) {
            false => visit::visit_item_mod(self, node),
            true if node.content.is_none() => self.found.test_modules.push(node.ident.to_string()),
            true => {}
        }
    }

    // constants cannot be switched at run time
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'a syn::ItemEnum) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    fn visit_attribute(&mut self, _: &'a Attribute) {}
    fn visit_expr_repeat(&mut self, node: &'a syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }

    fn visit_pat(&mut self, node: &'a Pat) {
        if let Pat::Guard(node) = node {
            if !self.text(&node.guard).contains("faults::on(") && !binds(&node.guard) {
                let guard = ends(self.text(&node.guard), true);
                let change = |value: &str| (format!("guard {guard} -> {value}"), value.to_string());
                self.add(&node.guard, false, vec![change("true"), change("false")]);
            }
            self.visit_expr(&node.guard);
        }
    }

    fn visit_expr_if(&mut self, node: &'a syn::ExprIf) {
        // a planted fault is no behaviour of the product
        if self.text(&node.cond).contains("faults::on(") {
            if let Some((_, otherwise)) = &node.else_branch {
                self.visit_expr(otherwise);
            }
        } else {
            visit::visit_expr_if(self, node);
        }
    }

    fn visit_expr_binary(&mut self, node: &'a syn::ExprBinary) {
        let operators = others(&node.op);
        if matches!(node.op, BinOp::And(_)) && self.text(&node.left).starts_with("faults::on(") {
            return;
        }
        let plain = !self.text(node).contains("faults::on(") && !binds(&node.left) && !binds(&node.right);
        if plain && !operators.is_empty() {
            self.replace_operator(node, operators);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'a syn::ExprUnary) {
        let removed = matches!(node.op, UnOp::Not(_) | UnOp::Neg(_));
        if removed && !self.text(node).contains("faults::on(") {
            let code = self.text(&node.expr).to_string();
            self.add(
                node,
                false,
                vec![(format!("{} -> without the operator", ends(self.text(node), true)), code)],
            );
        }
        visit::visit_expr_unary(self, node);
    }
}
