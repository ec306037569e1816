//! Multiple-choice questions: which choice a model finds most probable.
use crate::model::{self, Branch, Model, TrainingExample, objective};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::Target;

/// A question with several answers, of which one is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The tokens before the answer; at least one.
    pub prompt: Vec<u32>,
    /// The tokens of each answer; at least one each.
    pub choices: Vec<Vec<u32>>,
}

impl Question {
    /// The number of tokens of the prompt with its longest answer.
    pub fn longest(&self) -> usize {
        self.prompt.len() + self.choices.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The rows of the question in a forward pass, at most: the prompt is computed once for all answers.
    pub fn rows(&self) -> usize {
        self.prompt.len() + self.choices.iter().map(|choice| choice.len().saturating_sub(1)).sum::<usize>()
    }

    fn example(&self) -> TrainingExample {
        let target = |&id: &u32| Some(Target { id, weight: 1.0, bonus: 0.0 });
        let branch = |choice: &Vec<u32>| Branch {
            inputs: choice[..choice.len() - 1].to_vec(),
            targets: choice.iter().map(target).collect(),
            kept: Vec::new(),
        };
        let branches = self.choices.iter().map(branch).collect();
        TrainingExample { inputs: self.prompt.clone(), branches, ..TrainingExample::default() }
    }
}

/// The log-probability of each choice of each question, from one forward pass. The log-probability of a choice is the sum
/// over its tokens, in f64 and in token order. It has the same bits however questions are divided into calls.
///
/// # Errors
/// An id outside the vocabulary; a question longer than the context; logits that are not finite.
///
/// # Panics
/// A choice has no token.
pub fn log_probs(model: &Model, questions: &[Question]) -> Result<Vec<Vec<f64>>, model::Error> {
    let examples: Vec<TrainingExample> = questions.iter().map(Question::example).collect();
    let mut values = objective::evaluate(model, &examples, &mut 0.0)?.into_iter();
    let mut of_choice = |choice: &Vec<u32>| -> f64 {
        let of_tokens = values.by_ref().take(choice.len()).flatten().map(|value| f64::from(value.log_prob));
        let counted =
            if faults::on(Fault::LastTokenOfChoiceLeftOut) { choice.len() - 1 } else { choice.len() };
        // all values of the choice are taken
        of_tokens.enumerate().filter(|(at, _)| *at < counted).map(|(_, value)| value).sum()
    };
    Ok(questions.iter().map(|question| question.choices.iter().map(&mut of_choice).collect()).collect())
}

/// The index of the largest value; the first one of several.
///
/// # Panics
/// Without a value.
pub fn largest(values: &[f64]) -> usize {
    let last = faults::on(Fault::LastOfEqualChoices);
    let better = |best: usize, at: usize| values[at] > values[best] || last && values[at] == values[best];
    (0..values.len()).reduce(|best, at| if better(best, at) { at } else { best }).expect("at least one value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_values_is_chosen() {
        let values = [-3.0, -1.0, -2.0, -1.0];
        assert_eq!(largest(&values), 1);
        #[cfg(feature = "faults")]
        assert_eq!(faults::with(Fault::LastOfEqualChoices, || largest(&values)), 3);
        assert_eq!(largest(&[-5.0]), 0);
    }
}
