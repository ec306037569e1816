//! Table-driven tests of error enums: every variant is reached by a named case, and its text locates the error.
use std::collections::BTreeSet;
use std::fmt::Display;

/// A case: its name, the resulting error, and the parts that the error's text must contain.
pub type Case<'a, E> = (&'a str, E, &'a [&'a str]);

/// The variants of an error enum.
#[derive(Debug)]
pub struct Variants<E> {
    /// The names of all variants.
    pub all: &'static [&'static str],
    /// Returns the name of a value's variant.
    pub of: fn(&E) -> &'static str,
}

/// Creates the [`Variants`] of an enum from the names of its variants. The names become a match without a wildcard,
/// so the list does not compile if a variant is missing from it or no longer exists.
#[doc(hidden)]
#[macro_export]
macro_rules! __error_variants {
    ($error:ident: $($variant:ident)+) => {
        $crate::testing::named_cases::Variants {
            all: &[$(stringify!($variant)),+],
            of: |error: &$error| match error {
                $($error::$variant { .. } => stringify!($variant),)+
            },
        }
    };
}
pub use crate::__error_variants as variants;

/// Checks that each error text is one line that contains the parts of its case, and that the cases reach every
/// variant.
///
/// # Panics
/// If a text lacks a part, if two cases have the same name, or if no case reaches a variant.
#[track_caller]
pub fn check<E: Display>(variants: &Variants<E>, cases: &[Case<'_, E>]) {
    let (mut reached, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (name, error, parts) in cases {
        let text = error.to_string();
        assert!(names.insert(name), "two cases are named {name:?}");
        assert!(!text.contains('\n') && !parts.is_empty(), "{name}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{name}: {part:?} is not in: {text}");
        }
        reached.insert((variants.of)(error));
    }
    let missing: Vec<_> = variants.all.iter().filter(|variant| !reached.contains(*variant)).collect();
    assert!(missing.is_empty(), "no case reaches {missing:?}");
}

#[cfg(test)]
mod tests {
    use super::{check, variants};

    /// An error of two variants.
    #[derive(Debug)]
    enum Wrong {
        Here { at: usize },
        There,
    }

    impl std::fmt::Display for Wrong {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self {
                Wrong::Here { at } => write!(f, "wrong at {at}"),
                Wrong::There => write!(f, "wrong there"),
            }
        }
    }

    #[test]
    #[should_panic(expected = "no case reaches [\"There\"]")]
    fn a_variant_without_a_case_fails() {
        check(&variants!(Wrong: Here There), &[("here", Wrong::Here { at: 3 }, &["at 3"])]);
    }

    #[test]
    #[should_panic(expected = "\"at 4\" is not in: ")]
    fn a_text_without_a_part_fails() {
        let cases: [super::Case<'_, Wrong>; 2] =
            [("there", Wrong::There, &["there"]), ("here", Wrong::Here { at: 3 }, &["at 4"])];
        check(&variants!(Wrong: Here There), &cases);
    }
}
