//! The table of operations: one entry per public function of [`crate::ops`].
use super::case::Case;
use super::cases;
use super::gradient::{self, Sample};

/// How the gradient of an operation is checked.
pub(super) enum Gradient {
    /// By samples of this function: in f64 against finite differences, in f32 and bf16 against f64.
    Checked(fn(u64) -> Sample),
    /// Together with the gradient of the named operation.
    With(&'static str),
    /// The operation has no gradient check, for this reason.
    None(&'static str),
}

/// An operation and its gates.
pub(super) struct Entry {
    /// Its name in [`crate::ops`].
    pub(super) name: &'static str,
    /// The cases of the bitwise comparisons.
    pub(super) cases: fn() -> Vec<Case>,
    pub(super) gradient: Gradient,
}

const fn entry(name: &'static str, cases: fn() -> Vec<Case>, gradient: Gradient) -> Entry {
    Entry { name, cases, gradient }
}

/// Entries that are two operations, which the GPU backend fuses.
const FUSED: [&str; 6] = [
    "append_attention",
    "linear_add_norm",
    "linear_backward_rounded",
    "linear_backward_swiglu",
    "norm_linears",
    "norm_swiglu",
];

/// Every operation, and the fused pairs.
pub(super) const TABLE: [Entry; 52] = {
    use Gradient::{Checked, None, With};
    [
        entry("embedding", cases::embedding, Checked(gradient::embedding)),
        entry("embedding_backward", cases::embedding_backward, With("embedding")),
        entry("weight_rows", cases::weight_rows, None("checked as embedding")),
        entry("linear", cases::linear, Checked(gradient::linear)),
        entry("linear_add", cases::linear_add, Checked(gradient::linear_add)),
        entry("linear_backward_input", cases::linear_backward_input, With("linear")),
        entry("linear_backward_weight", cases::linear_backward_weight, With("linear")),
        entry("linear_backward_bias", cases::linear_backward_bias, With("linear")),
        entry("rms_norm", cases::rms_norm, Checked(gradient::rms_norm)),
        entry("rms_norm_backward", cases::rms_norm_backward, With("rms_norm")),
        entry("rope_rows", cases::rope_rows, Checked(gradient::rope_rows)),
        entry("rope_backward", cases::rope_backward, With("rope_rows")),
        entry("norm_rope", cases::norm_rope, None("its parts are checked")),
        entry("norm_rope_backward", cases::norm_rope_backward, With("rope_rows")),
        entry("rope", cases::rope, With("rope_rows")),
        entry("rope_at", cases::rope_at, With("rope_rows")),
        entry("rope_pos", cases::rope_pos, With("rope_rows")),
        entry("attention", cases::attention, Checked(gradient::attention)),
        entry("attention_backward", cases::attention_backward, With("attention")),
        entry("decode_attention", cases::decode_attention, None("rollouts need no gradient")),
        entry("quantize_heads", cases::quantize_heads, None("caches need no gradient")),
        entry("int8_attention", cases::int8_attention, None("rollouts need no gradient")),
        entry("silu_mul", cases::silu_mul, Checked(gradient::silu_mul)),
        entry("silu_mul_backward", cases::silu_mul_backward, With("silu_mul")),
        entry("add", cases::add, Checked(gradient::add)),
        entry("accumulate", cases::accumulate, With("add")),
        entry("repeat_kv", cases::repeat_kv, Checked(gradient::repeat_kv)),
        entry("repeat_kv_backward", cases::repeat_kv_backward, With("repeat_kv")),
        entry("cat_seq", cases::cat_seq, None("caches need no gradient")),
        entry("gather_rows", cases::gather_rows, Checked(gradient::gather_rows)),
        entry("gather_rows_backward", cases::gather_rows_backward, With("gather_rows")),
        entry("scatter_rows", cases::scatter_rows, None("caches need no gradient")),
        entry("copy_slots", cases::copy_slots, None("caches need no gradient")),
        entry("copy_slots_within", cases::copy_slots_within, None("caches need no gradient")),
        entry("cross_entropy", cases::cross_entropy, Checked(gradient::cross_entropy)),
        entry("cross_entropy_kept", cases::cross_entropy_kept, With("cross_entropy")),
        entry("cross_entropy_backward", cases::cross_entropy_backward, With("cross_entropy")),
        entry("log_prob", cases::log_prob, None("checked as cross_entropy")),
        entry("sample_rows", cases::sample_rows, None("sampling has no gradient")),
        entry("linears", cases::linears, None("its parts are checked")),
        entry("swiglu", cases::swiglu, None("its parts are checked")),
        entry("swiglu_kept", cases::swiglu_kept, None("its parts are checked")),
        entry("linear_backward_rounded", cases::linear_backward_rounded, With("linear")),
        entry("linear_backward_swiglu", cases::linear_backward_swiglu, With("silu_mul")),
        entry("linear_add_norm", cases::linear_add_norm, None("its parts are checked")),
        entry("norm_linears", cases::norm_linears, None("its parts are checked")),
        entry("norm_swiglu", cases::norm_swiglu, None("its parts are checked")),
        entry("write_heads", cases::write_heads, None("its parts are checked")),
        entry("append_attention", cases::append_attention, None("its parts are checked")),
        entry("adamw_all", cases::adamw_all, None("part of the optimizer")),
        entry("sum_of_squares", cases::sum_of_squares, None("part of the optimizer")),
        entry("first_non_finite", cases::first_non_finite, None("returns no tensor")),
    ]
};

/// The functions that the source of `ops/mod.rs` exports: the lower-case names in its `pub use` declarations.
fn exported(source: &str) -> Vec<&str> {
    let lists = source.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = lists.flat_map(|list| list.split([':', '{', '}', ',', '\n', ' ']).skip(1));
    names.filter(|n| n.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exported_operation_is_in_the_table_once() {
        let source = include_str!("../ops/mod.rs");
        assert!(
            !source.contains("pub fn ") && !source.contains("pub mod "),
            "each operation belongs in its own file"
        );
        let mut exported = exported(source);
        let mut listed: Vec<&str> = TABLE.iter().map(|e| e.name).collect();
        assert!(FUSED.iter().all(|name| listed.contains(name) && !exported.contains(name)));
        exported.extend(FUSED);
        exported.sort_unstable();
        listed.sort_unstable();
        assert_eq!(exported, listed, "left: exported; right: listed");
    }

    #[test]
    fn exports_are_found_in_any_layout() {
        let text = "mod x;\npub use add::{accumulate, add};\npub use a::one;\npub use b::{\n    Two, two,\n    three,\n};\npub(crate) fn f() {}\n";
        assert_eq!(exported(text), ["accumulate", "add", "one", "two", "three"]);
    }

    #[test]
    fn every_entry_has_cases_under_its_name_and_a_gradient_check_or_a_reason() {
        for e in &TABLE {
            let cases = (e.cases)();
            assert!(cases.len() >= 4, "{}: {} cases", e.name, cases.len());
            assert!(cases.iter().all(|c| c.op == e.name), "{}", e.name);
            match e.gradient {
                Gradient::Checked(_) => {}
                Gradient::None(why) => assert!(!why.is_empty()),
                Gradient::With(other) => {
                    let other = TABLE.iter().find(|e| e.name == other).expect("a listed operation");
                    assert!(matches!(other.gradient, Gradient::Checked(_)), "{}", e.name);
                }
            }
            let backward = e.name.contains("_backward");
            assert!(
                !backward || matches!(e.gradient, Gradient::With(_)),
                "{} must be checked with its forward operation",
                e.name
            );
        }
    }
}
