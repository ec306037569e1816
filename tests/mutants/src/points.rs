//! Finds the points of a source file that are mutated, and the mutants of each.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::discriminant;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Pat, ReturnType, Signature, Stmt, Token, UnOp};

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

/// What a point is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An expression: the code replaces it.
    Expression,
    /// A function body: the range is empty and each code is returned.
    Body,
    /// A statement: it is not executed. There is one mutant, without code.
    Statement,
}

/// Which changes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operators {
    /// Operators, guards and function bodies.
    Basic,
    /// Those, statements that are not executed, constants, bounds of ranges, conditions, exchanged arguments,
    /// methods, fields of `self` and variants.
    All,
}

/// A place of the source and the codes that replace it, one per mutant.
#[derive(Debug)]
pub struct Point {
    pub range: Range<usize>,
    pub place: Place,
    pub mutants: Vec<(Mutant, String)>,
}

/// What a file contains: its points and the names of the modules that only tests compile.
#[derive(Debug, Default)]
pub struct Found {
    pub points: Vec<Point>,
    pub test_modules: Vec<String>,
}

/// The points of `source`. Mutants are numbered from `first`. An outer point precedes the points inside it.
pub fn find(file: &str, source: &str, operators: Operators, first: u32) -> Found {
    let parsed = syn::parse_file(source).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut names = Names::default();
    if operators == Operators::All {
        names.visit_file(&parsed);
    }
    let mut finder = Finder {
        file,
        source,
        operators,
        names,
        next: first,
        functions: Vec::new(),
        keys: HashMap::new(),
        found: Found::default(),
    };
    finder.visit_file(&parsed);
    finder.found
}

/// Names that a file uses, sorted.
#[derive(Default)]
struct Names {
    /// Fields of `self`.
    fields: BTreeSet<String>,
    /// Variants without fields and associated constants, by what precedes them.
    variants: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    fn field(node: &syn::ExprField) -> Option<String> {
        let of_self = matches!(&*node.base, Expr::Path(path) if path.path.is_ident("self"));
        match &node.member {
            syn::Member::Named(name) if of_self => Some(name.to_string()),
            _ => None,
        }
    }

    fn variant(node: &syn::ExprPath) -> Option<(String, String)> {
        let names: Vec<_> = node.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let [owner @ .., name] = names.as_slice() else { return None };
        let upper = |name: &str| name.starts_with(char::is_uppercase);
        (upper(name) && owner.last().is_some_and(|owner| upper(owner)))
            .then(|| (owner.join("::"), name.clone()))
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_expr_field(&mut self, node: &'a syn::ExprField) {
        self.fields.extend(Names::field(node));
        visit::visit_expr_field(self, node);
    }

    fn visit_expr_path(&mut self, node: &'a syn::ExprPath) {
        if let Some((owner, name)) = Names::variant(node) {
            self.variants.entry(owner).or_default().insert(name);
        }
    }

    fn visit_expr_call(&mut self, node: &'a syn::ExprCall) {
        // a variant with fields is not a value
        node.args.iter().for_each(|argument| self.visit_expr(argument));
    }
}

/// The name after `name`; after the last one the first.
fn next_name(names: &BTreeSet<String>, name: &str) -> Option<String> {
    let at = names.iter().position(|other| other == name)?;
    names.iter().cycle().nth(at + 1).filter(|other| *other != name).cloned()
}

struct Finder<'s> {
    file: &'s str,
    source: &'s str,
    operators: Operators,
    names: Names,
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

    fn add(&mut self, node: &impl Spanned, place: Place, changes: Vec<(String, String)>) {
        let mut range = node.span().byte_range();
        if place == Place::Body {
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
        self.found.points.push(Point { range, place, mutants });
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
            self.add(block, Place::Body, changes);
        }
        self.visit_block(block);
        self.functions.pop();
    }

    /// Adds `changes` of an expression if all operators are asked for.
    fn more(&mut self, node: &impl Spanned, changes: Vec<(String, String)>) {
        if self.operators == Operators::All && !changes.is_empty() && !self.text(node).contains("faults::on(")
        {
            self.add(node, Place::Expression, changes);
        }
    }

    /// Exchanged neighbours among `arguments`, if they look alike. The compiler refuses those of different types.
    fn exchanges(
        &self,
        node: &impl Spanned,
        arguments: &Punctuated<Expr, Token![,]>,
    ) -> Vec<(String, String)> {
        let (code, start) = (self.text(node), node.span().byte_range().start);
        let pairs = arguments.iter().zip(arguments.iter().skip(1));
        let alike =
            pairs.filter(|(a, b)| discriminant(*a) == discriminant(*b) && self.text(*a) != self.text(*b));
        let exchanged = alike.map(|(a, b)| {
            let [first, second] = [a, b].map(|argument| argument.span().byte_range());
            let [first, second] = [first, second].map(|range| range.start - start..range.end - start);
            let (left, right) = (&code[first.clone()], &code[second.clone()]);
            let between = &code[first.end..second.start];
            let change = format!("{}, {} exchanged", ends(left, true), ends(right, true));
            (change, [&code[..first.start], right, between, left, &code[second.end..]].concat())
        });
        exchanged.collect()
    }

    /// The two operands of a binary expression with each of `operators` between them.
    fn replace_operator(&mut self, node: &syn::ExprBinary, operators: &[&str]) {
        let (left, right) = (self.text(&node.left), self.text(&node.right));
        let old = self.text(&node.op);
        let (head, tail) = (ends(left, false), ends(right, true));
        let changes = operators
            .iter()
            .map(|new| (format!("{head} {old} {tail} -> {new}"), format!("({left}) {new} ({right})")));
        self.add(node, Place::Expression, changes.collect());
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

/// The methods that replace `name`.
fn other_method(name: &str) -> Option<&'static str> {
    let pairs =
        [("min", "max"), ("any", "all"), ("first", "last"), ("is_some", "is_none"), ("is_ok", "is_err")];
    let found = pairs.iter().find(|(a, b)| [*a, *b].contains(&name));
    found.map(|(a, b)| if *a == name { *b } else { *a })
}

/// Whether a statement without a semicolon can be left out.
fn removable(expression: &Expr) -> bool {
    match expression {
        Expr::If(node) => node.else_branch.is_none(),
        Expr::ForLoop(_) | Expr::While(_) => true,
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_stmt(&mut self, node: &'a Stmt) {
        let code = self.text(node);
        let plain = !code.contains("faults::on(") && !code.starts_with('#');
        let removed = match node {
            // what an unconditional exit belongs to is removed as a whole
            Stmt::Expr(Expr::Return(_) | Expr::Break(_) | Expr::Continue(_), _) => false,
            Stmt::Expr(_, Some(_)) => true,
            Stmt::Expr(expression, None) => removable(expression),
            Stmt::Macro(node) => node.semi_token.is_some() && !self.text(&node.mac.path).contains("assert"),
            _ => false,
        };
        if self.operators == Operators::All && plain && removed {
            let change = format!("without {}", ends(code, true));
            self.add(node, Place::Statement, vec![(change, String::new())]);
        }
        visit::visit_stmt(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'a syn::ExprLit) {
        if let syn::Lit::Int(value) = &node.lit
            && let Ok(number) = value.base10_parse::<u64>()
        {
            let next = format!("{}{}", number.wrapping_add(1), value.suffix());
            self.more(node, vec![(format!("{} -> {next}", self.text(node)), next)]);
        }
        if let syn::Lit::Bool(value) = &node.lit {
            let other = (!value.value).to_string();
            self.more(node, vec![(format!("{} -> {other}", self.text(node)), other)]);
        }
    }

    fn visit_expr_field(&mut self, node: &'a syn::ExprField) {
        let other = Names::field(node).and_then(|name| next_name(&self.names.fields, &name));
        if let Some(other) = other {
            self.more(node, vec![(format!("{} -> {other}", self.text(node)), format!("self.{other}"))]);
        }
        visit::visit_expr_field(self, node);
    }

    fn visit_expr_path(&mut self, node: &'a syn::ExprPath) {
        let Some((owner, name)) = Names::variant(node) else { return };
        let other = self.names.variants.get(&owner).and_then(|names| next_name(names, &name));
        if let Some(other) = other {
            let code = format!("{owner}::{other}");
            self.more(node, vec![(format!("{} -> {other}", self.text(node)), code)]);
        }
    }

    fn visit_expr_range(&mut self, node: &'a syn::ExprRange) {
        if let Some(end) = &node.end {
            let start = node.start.as_ref().map_or("", |start| self.text(start));
            let (limits, end) = (self.text(&node.limits), self.text(end));
            let sign = if limits == ".." { "+" } else { "-" };
            let mut changes = vec![(
                format!("{limits}{} -> {sign} 1", ends(end, true)),
                format!("{start}{limits}({end}) {sign} 1"),
            )];
            if !start.is_empty() {
                let change = format!("{}{limits} -> + 1", ends(start, false));
                changes.push((change, format!("({start}) + 1{limits}{end}")));
            }
            self.more(node, changes);
        }
        visit::visit_expr_range(self, node);
    }

    fn visit_expr_call(&mut self, node: &'a syn::ExprCall) {
        self.more(node, self.exchanges(node, &node.args));
        visit::visit_expr_call(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'a syn::ExprMethodCall) {
        let mut changes = self.exchanges(node, &node.args);
        let name = node.method.to_string();
        let (code, at) = (self.text(node), node.method.span().byte_range());
        let at = at.start - node.span().byte_range().start..at.end - node.span().byte_range().start;
        let replaced = other_method(&name).map(|other| {
            let change = format!("{} -> {other}", ends(&code[..at.end], false));
            (change, [&code[..at.start], other, &code[at.end..]].concat())
        });
        changes.extend(replaced);
        if name == "div_ceil" {
            changes.push((
                format!("{} rounded down", ends(code, true)),
                [&code[..at.start - 1], " / (", &code[at.end + 1..]].concat(),
            ));
        }
        self.more(node, changes);
        visit::visit_expr_method_call(self, node);
    }

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
                self.add(&node.guard, Place::Expression, vec![change("true"), change("false")]);
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
            if matches!(&*node.cond, Expr::MethodCall(_) | Expr::Call(_) | Expr::Path(_) | Expr::Field(_)) {
                let condition = ends(self.text(&node.cond), true);
                let change = |value: &str| (format!("if {condition} -> {value}"), value.to_string());
                self.more(&node.cond, vec![change("true"), change("false")]);
            }
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
                Place::Expression,
                vec![(format!("{} -> without the operator", ends(self.text(node), true)), code)],
            );
        }
        visit::visit_expr_unary(self, node);
    }
}
