//! Countdown: `3 7 5 22=3*5+7`.
use xtrain_tensor::rng::PhiloxRng;

use super::expression::{Rational, evaluate};
use super::task::{PromptSet, Task, first_line};
use super::words;
use crate::data::Permutation;

/// Number of keys: three digits and a target. A tenth of them is held out.
const SIZE: u64 = 100_000;
const HELD_OUT: u64 = SIZE / 10;
/// The targets have two digits.
const TARGETS: std::ops::Range<i64> = 10..100;
/// The orders of three numbers, and the operators between them, of the formulas that define the problems. The first
/// formula that reaches the target is the answer.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
const OPERATORS: [[char; 2]; 9] = [
    ['+', '+'],
    ['*', '+'],
    ['*', '-'],
    ['*', '*'],
    ['+', '-'],
    ['+', '*'],
    ['-', '+'],
    ['-', '-'],
    ['-', '*'],
];

/// Reaching a target from three numbers: `3 7 5 22=3*5+7`. The prompt contains three numbers from 1 to 9, in any
/// order, and a target from 10 to 99 that is the value of at least one formula `x o y o z` with the numbers in some
/// order and `o` one of `+ - *`.
///
/// Correct is every formula that uses each of the three numbers exactly once and has the target as its exact value:
/// whole numbers, `+ - * /` with the usual precedence, round brackets and spaces. Signs (`-3+5`) are not part of the
/// notation. The value is computed with rational numbers, so `8/(3-8/3)` is 24. Only the first line of a completion
/// is read, and a line of more than 128 bytes is wrong.
///
/// About a tenth of the problems is held out, in every order of their numbers: those whose number under a fixed
/// permutation is below a tenth of the number of keys.
#[derive(Debug, Clone)]
pub struct Countdown {
    prompts: Vec<Problem>,
    held_out: Vec<Problem>,
}

/// Three numbers and a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Problem {
    numbers: [i64; 3],
    target: i64,
}

impl Problem {
    /// `None`: not the notation of a prompt.
    fn parse(prompt: &str) -> Option<Problem> {
        let mut fields = prompt.strip_suffix('=')?.split(' ');
        let mut field = |length: usize| {
            let text = fields.next()?;
            let is_number = text.len() == length && text.bytes().all(|c| c.is_ascii_digit());
            is_number.then(|| text.parse::<i64>().ok())?
        };
        let problem = Problem { numbers: [field(1)?, field(1)?, field(1)?], target: field(2)? };
        let in_range = !problem.numbers.contains(&0) && TARGETS.contains(&problem.target);
        (fields.next().is_none() && in_range).then_some(problem)
    }

    fn prompt(&self) -> String {
        let [x, y, z] = self.numbers;
        format!("{x} {y} {z} {}=", self.target)
    }

    /// The first formula that reaches the target. `None`: there is none.
    fn answer(&self) -> Option<String> {
        let formulas =
            OPERATORS.iter().flat_map(|operators| ORDERS.iter().map(move |order| (operators, order)));
        formulas.into_iter().find_map(|([first, second], order)| {
            let [x, y, z] = order.map(|at| self.numbers[at]);
            (value([x, y, z], [*first, *second]) == self.target).then(|| format!("{x}{first}{y}{second}{z}"))
        })
    }

    fn is_solved_by(&self, formula: &str) -> bool {
        let sorted = |mut numbers: Vec<i64>| {
            numbers.sort_unstable();
            numbers
        };
        evaluate(formula).is_some_and(|formula| {
            formula.value == Rational::from(self.target)
                && sorted(formula.numbers) == sorted(self.numbers.to_vec())
        })
    }

    /// A number below [`SIZE`] that does not depend on the order of the numbers.
    fn key(&self) -> u64 {
        let mut numbers = self.numbers;
        numbers.sort_unstable();
        numbers.iter().fold(0, |key, &n| key * 10 + n as u64) * 100 + self.target as u64
    }
}

/// The value of `x o y o z` with the usual precedence.
fn value([x, y, z]: [i64; 3], operators: [char; 2]) -> i64 {
    let apply = |a: i64, operator: char, b: i64| match operator {
        '+' => a + b,
        '-' => a - b,
        _ => a * b,
    };
    match operators {
        [first, '*'] => apply(x, first, y * z),
        [first, second] => apply(apply(x, first, y), second, z),
    }
}

impl Default for Countdown {
    fn default() -> Countdown {
        let order = Permutation::new(SIZE, [0x63, 0x6f, 0x75, 0x6e, 0x74, 0x64]);
        let digits = (0..729).map(|index| [index / 81 + 1, index / 9 % 9 + 1, index % 9 + 1]);
        let problems = digits.flat_map(|numbers| TARGETS.map(move |target| Problem { numbers, target }));
        let (held_out, prompts) = problems
            .filter(|problem| problem.answer().is_some())
            .partition(|problem| order.at(problem.key()) < HELD_OUT);
        Countdown { prompts, held_out }
    }
}

impl Task for Countdown {
    fn name(&self) -> &'static str {
        "countdown"
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        let problems = if part == PromptSet::Train { &self.prompts } else { &self.held_out };
        problems.iter().map(Problem::prompt).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        let index = words::draw(rng, self.prompts.len() as u64, |_| true);
        Some(self.prompts[index as usize].prompt())
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        Problem::parse(prompt)?.answer()
    }

    fn check(&self, prompt: &str, completion: &str) -> bool {
        Problem::parse(prompt).is_some_and(|problem| problem.is_solved_by(first_line(completion)))
    }

    fn substitutes(&self, c: char) -> &'static str {
        match c {
            '1'..='9' => "123456789",
            '+' | '-' | '*' => "+-*",
            _ => "",
        }
    }
}
