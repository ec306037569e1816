//! Malicious templates: each gives a result or a one-line error. None aborts the process.
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::RngExt as _;
use xtrain_tensor::testing::{alone, times};

use super::*;
use crate::test_memory::with_little_memory;
use crate::test_rng::rng;

/// The result of an untrusted template for one message: `= ` and the text, or the error.
fn outcome(template: &str) -> String {
    let options = Options { special_tokens: vec![("eos_token".into(), "!".into())], ..Options::default() };
    let rendered = ChatTemplate::parse(template)
        .and_then(|template| template.render(&[Message::new("user", "a")], &options));
    let text = rendered.map_or_else(|error| error.to_string(), |rendered| format!("= {}", rendered.text));
    assert!(text.starts_with("= ") || text.lines().count() == 1 && text.len() < 1500, "{text}");
    text
}

#[track_caller]
fn check(template: &str, want: &str) {
    let got = outcome(template);
    assert!(got.contains(want), "{}: {got}", template.chars().take(80).collect::<String>());
}

#[test]
fn endless_loops_and_unbounded_growth_are_stopped() {
    check("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "instructions");
    check("{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(1) }}", "recursion limit");
    check("{% include 'chat' %}", "cannot be rendered");
    check(
        "{% set x='a'*9999999 %}{% for i in range(9) %}{{ x }}{% endfor %}",
        "output: expected at most 16777216",
    );
    let lists =
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for print in ["tojson", "tojson(sort_keys=true)"] {
        check(&format!("{lists}{{{{ ns.x | {print} }}}}"), "the text exceeds the output limit");
    }
    check("{{ range(9223372036854775807) | list }}", "too many elements");
}

#[test]
fn deep_nesting_is_refused_or_fits_the_stack() {
    for (open, link, close) in [
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ 1", "|string", " }}"),
        ("{{ x", ".a", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", "+1", ""),
        ("{% if 1", " and 1", " %}{% endif %}"),
    ] {
        check(
            &format!("{open}{}{close}", link.repeat(50_000)),
            "bytes of code in one tag: expected at most 8192",
        );
        // below the limit, the stack is sufficient
        outcome(&format!("{open}{}{close}", link.repeat(8000 / link.len())));
    }
    check(
        &format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(5000)),
        "elif tags: expected at most 1000",
    );
    assert_eq!(outcome(&format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(1000))), "= ");
    for (open, link) in [("{{ ", "("), ("{{ ", "["), ("{{ ", "{1:"), ("", "{% if 1 %}")] {
        check(&format!("{open}{}", link.repeat(2000)), "syntax error");
    }
    let nested = |print: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for a in range(99) %}}{{% for i in range(999) %}}\
             {{% set ns.x = [ns.x] %}}{{% endfor %}}{{% endfor %}}{print}"
        )
    };
    for print in ["", "{{ ns.x | string | length }}", "{{ ns.x == ns.x }}", "{{ ns.x | tojson | length }}"] {
        outcome(&nested(print));
    }
}

#[test]
fn a_large_number_causes_no_large_allocation() {
    let too_wide = "a width of more than 9999";
    check("{{ 'a\nb' | indent(99999999999999) }}", too_wide);
    check("{{ 'a\nb' | indent(width=99999999999999) }}", too_wide);
    check("{{ '%99999999999d' | format(1) }}", too_wide);
    check("{{ '%*d' | format(99999999999, 1) }}", too_wide);
    check("{{ '{:99999999999}'.format(1) }}", too_wide);
    check("{{ '{:{}}'.format(1, 99999999999) }}", too_wide);
    check("{{ [1] | tojson(indent=99999999999) }}", "more than 64 spaces");
    check("{{ 'a' * 99999999999 }}", "cannot be rendered");
    assert_eq!(outcome("{{ 'a\nb' | indent(2, true) }}{{ '%03d %s' | format(7, 'x') }}"), "=   a\n  b007 x");
    assert_eq!(outcome("{{ '{:>4}{}'.format(1, 'y') }}"), "=    1y");
    // a large number that is no width
    assert_eq!(outcome("{{ '%d' | format(10000) }}{{ '{}'.format(10000) }}"), "= 1000010000");
}

#[test]
fn a_width_may_be_9999() {
    for template in [
        "{{ 'a\nb' | indent(9999) | length }}",
        "{{ '%9999d' | format(1) | length }}",
        "{{ '{:9999}'.format(1) | length }}",
    ] {
        let length = if template.contains("indent") { 10_002 } else { 9999 };
        assert_eq!(outcome(template), format!("= {length}"), "{template}");
        check(&template.replace("9999", "10000"), "a width of more than 9999");
    }
}

#[test]
fn third_party_panics_are_errors() {
    check("{{ 'abc'[::-9223372036854775808] }}", "the parser panicked");
}

/// Fragments of templates.
const PIECES: [&str; 40] = [
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{%+",
    " if ",
    " endif ",
    " for m in messages ",
    " endfor ",
    " else ",
    " elif ",
    " set x = ",
    " macro f(a) ",
    " endmacro ",
    " generation ",
    " endgeneration ",
    " raw ",
    " endraw ",
    "messages",
    "[0]",
    "['role']",
    ".content",
    " | tojson",
    " | trim",
    " ~ ",
    " + ",
    " * 99999",
    " not in ",
    " is defined ",
    "namespace(x=1)",
    "loop.index0",
    "'%}'",
    "\"",
    "\\",
    "\u{fdd0}",
    "range(99999)",
];

fn mutate(template: &str, mut random: impl FnMut(usize) -> usize) -> String {
    let mut chars: Vec<char> = template.chars().collect();
    for _ in 0..=random(4) {
        let (at, other) = (random(chars.len() + 1), random(chars.len() + 1));
        let (from, to) = (at.min(other), at.max(other).min(at.min(other) + 40));
        match random(4) {
            0 => drop(chars.splice(at..at, PIECES[random(PIECES.len())].chars())),
            1 => drop(chars.drain(from..to)),
            2 => {
                let copied = chars[from..to].to_vec();
                drop(chars.splice(at..at, copied));
            }
            _ if at < chars.len() => chars[at] = char::from_u32(random(0x3000) as u32).unwrap_or('\0'),
            _ => {}
        }
    }
    chars.into_iter().collect()
}

#[test]
fn mutated_templates_do_no_harm() {
    if !alone("chat::hostile::mutated_templates_do_no_harm") {
        return;
    }
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers");
    let qwen = std::fs::read_to_string(dir.join("qwen_bpe/chat_template.jinja")).unwrap();
    let (cases, threads) = (times(20_000, 200_000), 4);
    let renders = |case: u64| {
        let mut rng = rng(case);
        let random = |n: usize| rng.random_range(0..n);
        let text = mutate([&qwen, BUILT_IN][case as usize % 2], random);
        let done = catch_unwind(AssertUnwindSafe(|| outcome(&text)));
        done.unwrap_or_else(|_| panic!("case {case}: {text:?}")).starts_with("= ")
    };
    let part = &|first: u64| (first..cases).step_by(threads).filter(|&case| renders(case)).count();
    // each case waits for two threads of its own; together they need no more memory than one may
    let all = || {
        std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads as u64).map(|first| scope.spawn(move || part(first))).collect();
            parts.into_iter().map(|part| part.join().unwrap() as u64).sum::<u64>()
        })
    };
    let rendered = with_little_memory("chat templates on four threads", qwen.len(), all);
    println!("chat templates: {rendered} of {cases} mutations still render");
    assert!(rendered > cases / 50 && rendered < cases / 2, "{rendered} of {cases}");
}
