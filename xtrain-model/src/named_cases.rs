//! Errors against tables of named cases: every variant is reached by one, and its text says where.
use std::collections::BTreeSet;
use std::fmt::Display;

/// A case: what is wrong, the error that it ends with, and what the error's text has to hold.
pub(crate) type Case<'a, E> = (&'a str, E, &'a [&'a str]);

/// The variants of an error, and which of them a value is.
pub(crate) struct Variants<E> {
    /// All of them by name.
    pub(crate) all: &'static [&'static str],
    /// The name of a value's variant.
    pub(crate) of: fn(&E) -> &'static str,
}

/// [`Variants`] of an enum from the list of their names. The list is a match without a wildcard: it does not compile
/// while a variant is missing, nor with one that is gone.
macro_rules! variants {
    ($error:ident: $($variant:ident)+) => {
        $crate::named_cases::Variants {
            all: &[$(stringify!($variant)),+],
            of: |error: &$error| match error {
                $($error::$variant { .. } => stringify!($variant),)+
            },
        }
    };
}
pub(crate) use variants;

/// Checks that each text is one line that holds what its case asks for, and that the cases reach every variant.
///
/// # Panics
/// With the cases whose text lacks something, or the variants that no case reaches.
#[track_caller]
pub(crate) fn check<E: Display>(variants: &Variants<E>, cases: &[Case<'_, E>]) {
    let (mut reached, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (name, error, parts) in cases {
        let text = error.to_string();
        assert!(names.insert(name), "two cases are called {name:?}");
        assert!(!text.contains('\n') && !parts.is_empty(), "{name}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{name}: {part:?} is not in: {text}");
        }
        reached.insert((variants.of)(error));
    }
    let left: Vec<_> = variants.all.iter().filter(|variant| !reached.contains(*variant)).collect();
    assert!(left.is_empty(), "no case reaches {left:?}");
}

mod tests {
    use super::check;

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
    fn a_text_that_does_not_say_where_fails() {
        let cases: [super::Case<'_, Wrong>; 2] =
            [("there", Wrong::There, &["there"]), ("here", Wrong::Here { at: 3 }, &["at 4"])];
        check(&variants!(Wrong: Here There), &cases);
    }
}
