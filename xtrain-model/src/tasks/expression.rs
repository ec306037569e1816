//! Evaluates arithmetic expressions with exact rational numbers.

/// Maximum length of an expression in bytes. It also limits the recursion: one level per opening bracket.
const MAX_LENGTH: usize = 128;
/// Maximum number of digits of a number.
const MAX_DIGITS: usize = 6;

/// The value of an expression and the numbers in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evaluated {
    /// The exact value.
    pub(super) value: Rational,
    /// The numbers, from left to right.
    pub(super) numbers: Vec<i64>,
}

/// A rational number in lowest terms with a positive denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rational {
    numerator: i64,
    denominator: i64,
}

impl From<i64> for Rational {
    fn from(value: i64) -> Rational {
        Rational { numerator: value, denominator: 1 }
    }
}

impl Rational {
    /// `None`: the denominator is 0, or a part does not fit i64.
    fn new(numerator: i128, denominator: i128) -> Option<Rational> {
        if denominator == 0 {
            return None;
        }
        let (mut a, mut b) = (numerator.unsigned_abs(), denominator.unsigned_abs());
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let divisor = i128::try_from(a).ok()? * denominator.signum();
        let part = |value: i128| i64::try_from(value / divisor).ok();
        Some(Rational { numerator: part(numerator)?, denominator: part(denominator)? })
    }

    /// `self operator other`. `None`: division by 0, overflow, or another operator.
    fn apply(self, operator: u8, other: Rational) -> Option<Rational> {
        let (a, b) = (i128::from(self.numerator), i128::from(self.denominator));
        let (c, d) = (i128::from(other.numerator), i128::from(other.denominator));
        match operator {
            b'+' => Rational::new(a.checked_mul(d)?.checked_add(c.checked_mul(b)?)?, b.checked_mul(d)?),
            b'-' => Rational::new(a.checked_mul(d)?.checked_sub(c.checked_mul(b)?)?, b.checked_mul(d)?),
            b'*' => Rational::new(a.checked_mul(c)?, b.checked_mul(d)?),
            b'/' => Rational::new(a.checked_mul(d)?, b.checked_mul(c)?),
            _ => None,
        }
    }
}

/// Evaluates `text`: whole numbers of at most 6 digits, the binary operators `+ - * /` with the usual precedence and
/// associativity, round brackets, and spaces between them. There are no signs: `-3+5` is not an expression.
///
/// `None`: not an expression, longer than 128 bytes, a division by 0, or an intermediate value whose numerator or
/// denominator does not fit i64. The time is linear in the length; longer texts are not read.
pub(super) fn evaluate(text: &str) -> Option<Evaluated> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let mut parser = Parser { rest: text.as_bytes(), numbers: Vec::new() };
    let value = parser.sum()?;
    parser.peek().is_none().then_some(Evaluated { value, numbers: parser.numbers })
}

struct Parser<'a> {
    rest: &'a [u8],
    numbers: Vec<i64>,
}

impl Parser<'_> {
    /// The next byte that is not a space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    /// Removes the next byte that is not a space if `accepts` holds for it.
    fn take(&mut self, accepts: impl Fn(u8) -> bool) -> Option<u8> {
        let byte = self.peek().filter(|&byte| accepts(byte))?;
        self.rest = &self.rest[1..];
        Some(byte)
    }

    fn sum(&mut self) -> Option<Rational> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(|c| c == b'+' || c == b'-') {
            value = value.apply(operator, self.product()?)?;
        }
        Some(value)
    }

    fn product(&mut self) -> Option<Rational> {
        let mut value = self.factor()?;
        while let Some(operator) = self.take(|c| c == b'*' || c == b'/') {
            value = value.apply(operator, self.factor()?)?;
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<Rational> {
        if self.take(|c| c == b'(').is_some() {
            let value = self.sum()?;
            return self.take(|c| c == b')').map(|_| value);
        }
        self.peek()?;
        let digits = self.rest.iter().take_while(|c| c.is_ascii_digit()).count();
        if !(1..=MAX_DIGITS).contains(&digits) {
            return None;
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = number.iter().fold(0, |value, c| value * 10 + i64::from(c - b'0'));
        self.numbers.push(number);
        Some(Rational::from(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, numerator: i64, denominator: i64) {
        let value = evaluate(text).map(|evaluated| evaluated.value);
        assert_eq!(value, Some(Rational { numerator, denominator }), "{text}");
    }

    #[test]
    fn operators_have_the_usual_precedence_and_are_exact() {
        check("3*5+7", 22, 1);
        check("7+3*5", 22, 1);
        check("(7+3)*5", 50, 1);
        check("9-5-3", 1, 1);
        check("9-(5-3)", 7, 1);
        check("8/4/2", 1, 1);
        check("1/3+1/6", 1, 2);
        check("1/(2-5)", -1, 3);
        check("8/(3-8/3)", 24, 1);
        check(" ( ( 12 ) ) * 2 ", 24, 1);
        check("0/5", 0, 1);
        assert_eq!(evaluate("(12-3)*07").unwrap().numbers, [12, 3, 7]);
    }

    #[test]
    fn other_texts_are_not_expressions() {
        for text in [
            "",
            " ",
            "+",
            "3+",
            "+3",
            "-3+5",
            "3**2",
            "3//2",
            "(3",
            "3)",
            "()",
            "3 5",
            "3(5)",
            "3x5",
            "3^5",
            "3.5",
            "1e3",
            "0x10",
            "3=3",
            "3,5",
            "1234567",
            "٣+٥",
            "3×5",
            "3−1",
            "1/0",
            "1/(2-2)",
            "3;5",
            "__import__('os')",
        ] {
            assert_eq!(evaluate(text), None, "{text:?}");
        }
    }

    #[test]
    fn hostile_texts_are_refused_without_a_panic() {
        let powers = ["999999"; 18].join("*");
        let fractions = (0..18).map(|i| format!("1/{}", 999_983 - i)).collect::<Vec<_>>().join("+");
        for text in [
            "(".repeat(MAX_LENGTH),
            "(".repeat(1 << 20),
            "1+".repeat(1 << 20),
            "9".repeat(1 << 20),
            powers,
            fractions,
        ] {
            assert_eq!(evaluate(&text), None);
        }
        let nested = format!("{}7{}", "(".repeat(63), ")".repeat(63));
        check(&nested, 7, 1);
    }
}
