//! Writes a source file that contains all its mutants.
use std::collections::HashSet;
use std::ops::Range;

use crate::points::{Place, Point};

/// A source file with mutants and where they are in it.
#[derive(Debug, Default)]
pub struct Instrumented {
    pub code: String,
    /// The point of each mutation and its mutants, outer points first.
    points: Vec<(Range<usize>, Vec<u32>)>,
    /// The replacing codes.
    codes: Vec<(Range<usize>, u32)>,
}

/// `source` with the mutants of `points` that are not in `dropped`. Each point becomes
/// `(if on(N) { mutated } else { original })`, a function body begins with `if on(N) { return value; }`, and a
/// statement becomes `if on(N) {} else { statement }`.
pub fn instrument(source: &str, points: &[Point], dropped: &HashSet<u32>) -> Instrumented {
    // (position, what ends there comes first, order, point, is the end)
    let mut edits = Vec::new();
    for (at, point) in points.iter().enumerate() {
        let order = at as i64;
        edits.push((point.range.start, 1, order, at, false));
        if point.place != Place::Body {
            edits.push((point.range.end, 0, -order, at, true));
        }
    }
    edits.sort_unstable();
    let mut out = Instrumented::default();
    let mut copied = 0;
    for (position, _, _, at, is_end) in edits {
        let point = &points[at];
        out.code += &source[copied..position];
        copied = position;
        let alive: Vec<_> =
            point.mutants.iter().filter(|(mutant, _)| !dropped.contains(&mutant.id)).collect();
        if alive.is_empty() {
            continue;
        }
        if is_end {
            out.code += if point.place == Place::Expression { " })" } else { " }" };
            let open = out.points.iter_mut().rfind(|(range, ids)| range.end == 0 && ids[0] == alive[0].0.id);
            open.expect("a point begins before it ends").0.end = out.code.len();
            continue;
        }
        let start = out.code.len();
        let body = point.place == Place::Body;
        out.code += if point.place == Place::Expression { "(" } else { "" };
        for (mutant, code) in &alive {
            out.code += &format!("if crate::mutant_switch::on({}) {{ ", mutant.id);
            let begin = out.code.len();
            out.code += &if body { format!("return {code};") } else { code.clone() };
            out.codes.push((begin..out.code.len(), mutant.id));
            out.code += if body { " } " } else { " } else " };
        }
        out.code += if body { "" } else { "{ " };
        let end = if body { out.code.len() } else { 0 };
        out.points.push((start..end, alive.iter().map(|(mutant, _)| mutant.id).collect()));
    }
    out.code += &source[copied..];
    out
}

impl Instrumented {
    /// The mutants that an error of the compiler at `position` is about.
    pub fn blamed(&self, position: usize) -> Vec<u32> {
        if let Some((_, id)) = self.codes.iter().find(|(range, _)| range.contains(&position)) {
            return vec![*id];
        }
        let inner = self.points.iter().rfind(|(range, _)| range.contains(&position));
        inner.map(|(_, ids)| ids.clone()).unwrap_or_default()
    }

    /// The mutants on the line of `position`.
    pub fn on_line(&self, position: usize) -> Vec<u32> {
        let start = self.code[..position].rfind('\n').map_or(0, |at| at + 1);
        let end = self.code[position..].find('\n').map_or(self.code.len(), |at| position + at);
        let touches = |range: &Range<usize>| range.start < end && range.end > start;
        self.points.iter().filter(|(range, _)| touches(range)).flat_map(|(_, ids)| ids.clone()).collect()
    }
}
