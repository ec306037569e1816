//! The names of options: those of TRL's configuration.

/// Implements `Display`, `FromStr` and `ALL` for an enum without fields.
macro_rules! named {
    ($type:ident, $field:literal: $($variant:ident $name:literal,)*) => {
        impl $type {
            /// Every value.
            pub const ALL: &[$type] = &[$($type::$variant),*];
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($type::$variant => $name,)*
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::rl::error::RlError;

            fn from_str(name: &str) -> Result<$type, Self::Err> {
                match name {
                    $($name => Ok($type::$variant),)*
                    _ => Err($crate::rl::error::RlError::Option {
                        field: $field,
                        want: concat!("one of", $(" ", $name),*).into(),
                        got: format!("{name:?}"),
                    }),
                }
            }
        }
    };
}

pub(super) use named;
