//! SentencePiece vocabularies: the tokenizer model `llama` of GGUF, whose scores order the merges of a BPE.
use std::collections::{BTreeSet, HashMap};

use serde_json::{Value as Json, json};

/// The character that stands for a space.
const SPACE: &str = "\u{2581}";
/// Maximum length of a token in bytes. Every position of a token may be the end of a merge.
const MAX_TOKEN: usize = 1024;
/// Maximum memory of all merges in bytes, as a list and as JSON values.
const MAX_MERGES: usize = 64 << 20;
/// Memory of a merge in addition to its text: an entry of the list, a JSON array and its two strings.
const MERGE_BYTES: usize = 200;

/// A merge of two tokens.
pub(super) type Merge<'a> = (&'a str, &'a str);

/// The merges that follow from the scores of a vocabulary: every split of a token into two tokens, in descending order
/// of the token's score. Of the splits of one token, the one with the longest left part is first. This is the order of
/// transformers' converter. No score is NaN. Fails with what was found instead of a supported vocabulary.
pub(super) fn merges<'a>(tokens: &[(&'a str, f64)]) -> Result<Vec<Merge<'a>>, String> {
    merges_within(tokens, MAX_MERGES)
}

/// The memory of a merge that yields a token of `length` bytes.
fn memory_of(length: usize) -> usize {
    MERGE_BYTES + 2 * length
}

/// [`merges`] that need at most `max_bytes` of memory.
fn merges_within<'a>(tokens: &[(&'a str, f64)], max_bytes: usize) -> Result<Vec<Merge<'a>>, String> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, (token, _))| (*token, id)).collect();
    let (mut found, mut bytes) = (Vec::new(), 0);
    for &(token, score) in tokens {
        if token.len() > MAX_TOKEN {
            return Err(format!("a token of {} bytes", token.len()));
        }
        let from = found.len();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(a), Some(b)) = (ids.get(left), ids.get(right)) {
                bytes += memory_of(token.len());
                if bytes > max_bytes {
                    return Err(format!("more than {} merges", found.len()));
                }
                found.push((score + 0.0, (a, b), (left, right)));
            }
        }
        found[from..].sort_by_key(|(_, ids, _)| *ids);
    }
    let chars = |text: &str| text.chars().count();
    found.sort_by(|(x, _, (a, b)), (y, _, (c, d))| {
        y.total_cmp(x).then_with(|| chars(c).cmp(&chars(a))).then_with(|| chars(d).cmp(&chars(b)))
    });
    Ok(found.into_iter().map(|(_, _, merge)| merge).collect())
}

/// The steps of a `tokenizer.json` for a vocabulary of SentencePiece: its normalizer and its decoder.
pub(super) fn steps(space_prefix: bool) -> (Json, Json) {
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if space_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    (
        json!({"type": "Sequence", "normalizers": normalizers}),
        json!({"type": "Sequence", "decoders": decoders}),
    )
}

/// Whether the steps of `json`, a `tokenizer.json`, are those of a SentencePiece vocabulary with bytes for unknown
/// characters, and if so, whether it adds a space to the beginning of a text.
pub(super) fn space_prefix_of(json: &Json) -> Option<bool> {
    let alone = |steps: &Json| match steps["normalizers"].as_array() {
        Some(list) if list.len() == 1 => list[0].clone(),
        _ => steps.clone(),
    };
    let metaspace = |step: &Json| step["type"] == "Metaspace" && step["replacement"] == SPACE;
    let (normalizer, pre_tokenizer) = (&json["normalizer"], &json["pre_tokenizer"]);
    if json["model"]["type"] != "BPE" || json["model"]["byte_fallback"] != true {
        return None;
    }
    [true, false].into_iter().find(|&space_prefix| {
        let (want, decoder) = steps(space_prefix);
        let normalizes = pre_tokenizer.is_null() && alone(normalizer) == alone(&want);
        let never = pre_tokenizer["prepend_scheme"] == "never";
        let splits = pre_tokenizer["split"] != false;
        let metaspace = normalizer.is_null() && metaspace(pre_tokenizer) && !splits && never != space_prefix;
        json["decoder"] == decoder && (normalizes || metaspace)
    })
}

/// Scores from which the merges of a tokenizer follow. `None`: there are none. Tokens that no merge yields have the
/// lowest scores, except those of `zero`.
pub(super) fn scores(
    tokens: &[String],
    merges: &[Merge<'_>],
    zero: impl Fn(usize) -> bool,
) -> Option<Vec<f64>> {
    let mut rank: HashMap<String, usize> = HashMap::new();
    let mut last = String::new();
    for (left, right) in merges {
        let token = format!("{left}{right}");
        if token != last {
            let next = rank.len();
            if rank.insert(token.clone(), next).is_some() {
                return None;
            }
            last = token;
        }
    }
    let mut below = rank.len();
    let scored: Vec<(&str, f64)> = (0..)
        .zip(tokens)
        .map(|(id, token)| {
            let score = rank.get(token).copied().unwrap_or_else(|| {
                below += 1;
                below - 1
            });
            (&**token, if zero(id) { 0.0 } else { -(score as f64) })
        })
        .collect();
    // Equal sets of merges need equal memory.
    let bytes = merges.iter().map(|(left, right)| memory_of(left.len() + right.len())).sum();
    let want: BTreeSet<Merge<'_>> = merges.iter().copied().collect();
    let got: BTreeSet<Merge<'_>> = merges_within(&scored, bytes).ok()?.into_iter().collect();
    (want == got).then(|| scored.into_iter().map(|(_, score)| score).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_ordered_by_the_score_of_their_token() {
        let tokens = [("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -2.0), ("aba", 0.0)];
        let want = [("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a")];
        assert_eq!(merges(&tokens).unwrap(), want);
        let names = tokens.map(|(token, _)| token.to_string());
        let scores = scores(&names, &want, |_| false).unwrap();
        assert_eq!(scores, [-3.0, -4.0, -1.0, -2.0, 0.0], "tokens that no merge yields are last");
        let again: Vec<(&str, f64)> = names.iter().map(String::as_str).zip(scores).collect();
        assert_eq!(merges(&again).unwrap(), want);
    }

    #[test]
    fn both_zeros_are_one_score() {
        let tokens = [("a", -9.0), ("b", -9.0), ("ab", -0.0), ("ba", 0.0)];
        assert_eq!(merges(&tokens).unwrap(), [("a", "b"), ("b", "a")]);
    }

    #[test]
    fn the_memory_of_merges_and_the_length_of_tokens_reach_their_limits() {
        let tokens = ["a", "b", "c", "bc", "abc", "ab"].map(|token| (token, 0.0));
        // two merges yield `abc`
        let bytes = 2 * (200 + 2 * 3) + 2 * (200 + 2 * 2);
        assert_eq!(merges_within(&tokens, bytes).unwrap().len(), 4);
        assert_eq!(merges_within(&tokens, bytes - 1).unwrap_err(), "more than 3 merges");
        assert_eq!(merges(&[(&"a".repeat(MAX_TOKEN), 0.0)]), Ok(Vec::new()));
    }

    #[test]
    fn the_steps_of_sentencepiece_are_recognized_in_both_forms_and_no_other_steps() {
        let json = |space_prefix: bool| {
            let (normalizer, decoder) = steps(space_prefix);
            let model = json!({"type": "BPE", "byte_fallback": true});
            json!({"model": model, "normalizer": normalizer, "pre_tokenizer": null, "decoder": decoder})
        };
        let metaspace = |space_prefix: bool| {
            let scheme = if space_prefix { "first" } else { "never" };
            let step =
                json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false});
            let mut json = json(space_prefix);
            (json["normalizer"], json["pre_tokenizer"]) = (Json::Null, step);
            json
        };
        let mut single = json(false);
        single["normalizer"] = single["normalizer"]["normalizers"][0].clone();
        assert_eq!(space_prefix_of(&single), Some(false), "one step outside a list");
        for space_prefix in [true, false] {
            let (normalized, metaspace) = (json(space_prefix), metaspace(space_prefix));
            assert_eq!(space_prefix_of(&normalized), Some(space_prefix));
            assert_eq!(space_prefix_of(&metaspace), Some(space_prefix));
            let last = usize::from(space_prefix);
            for (field, other) in [
                ("/model/type", json!("Unigram")),
                ("/model/byte_fallback", json!(false)),
                ("/pre_tokenizer", json!({"type": "Digits"})),
                ("/normalizer", Json::Null),
                (&*format!("/normalizer/normalizers/{last}/content"), json!("_")),
                ("/decoder", Json::Null),
            ] {
                let mut changed = normalized.clone();
                *changed.pointer_mut(field).unwrap() = other;
                assert_eq!(space_prefix_of(&changed), None, "{field}");
            }
            for (field, other) in [
                ("/normalizer", json!({"type": "NFC"})),
                ("/pre_tokenizer/type", json!("Split")),
                ("/pre_tokenizer/replacement", json!("_")),
                ("/pre_tokenizer/split", json!(true)),
                ("/pre_tokenizer/prepend_scheme", json!(if space_prefix { "never" } else { "first" })),
                ("/decoder", Json::Null),
            ] {
                let mut changed = metaspace.clone();
                *changed.pointer_mut(field).unwrap() = other;
                assert_eq!(space_prefix_of(&changed), None, "{field}");
            }
        }
    }

    #[test]
    fn merges_that_no_scores_yield_are_refused() {
        let tokens = ["a", "b", "ab", "ba", "aba"].map(String::from);
        let scored = |merges: &[Merge<'_>]| scores(&tokens, merges, |_| false).is_some();
        assert!(!scored(&[("a", "b"), ("b", "a"), ("ab", "a")]), "a split is missing");
        assert!(!scored(&[("a", "ba"), ("a", "b"), ("ab", "a"), ("b", "a")]), "splits of a token are apart");
    }

    #[test]
    fn hostile_vocabularies_are_refused() {
        let long = "a".repeat(MAX_TOKEN + 1);
        assert!(merges(&[(&long, 0.0)]).is_err());
        let family: Vec<String> =
            (1..=MAX_TOKEN).flat_map(|n| ["a", "b", "c"].map(|letter| letter.repeat(n))).collect();
        let tokens: Vec<(&str, f64)> = family.iter().map(|token| (&**token, 0.0)).collect();
        let error = merges(&tokens).unwrap_err();
        assert!(error.starts_with("more than ") && error.ends_with(" merges"), "{error}");
    }

    #[test]
    fn many_short_merges_are_refused_and_those_of_128_thousand_tokens_are_not() {
        let check = |tokens: usize| {
            // every token of three letters has two splits
            let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').collect();
            let mut all: Vec<String> = letters.iter().map(char::to_string).collect();
            all.extend((0..3844).map(|n| format!("{}{}", letters[n / 62], letters[n % 62])));
            all.extend(
                (0..tokens)
                    .map(|n| format!("{}{}{}", letters[n / 3844], letters[n / 62 % 62], letters[n % 62])),
            );
            let scored: Vec<(&str, f64)> = all.iter().map(|token| (&**token, 0.0)).collect();
            merges(&scored).map(|merges| merges.len())
        };
        assert!(check(128_000 - 3906).unwrap() > 2 * 120_000);
        assert!(check(238_328).is_err());
    }
}
