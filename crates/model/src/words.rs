//! Closed vocabularies that others may extend: a word we do not know decodes as `Unknown`, so that one odd
//! object cannot stop a watch, and no rule draws a conclusion from it.

/// Declares an enum of words as Kubernetes spells them, with `Unknown` for every other word.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// Absent, or a word that this version does not know: nothing follows from it.
            #[default]
            Unknown,
        }

        impl $name {
            /// The word, as Kubernetes spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown => "Unknown",
                }
            }

            /// The meaning of a word.
            pub fn of(word: &str) -> Self {
                match word {
                    $($text => Self::$variant,)*
                    _ => Self::Unknown,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(word.map_or(Self::Unknown, |word| Self::of(&word)))
            }
        }
    };
}

pub(crate) use words;

/// Reads `null` as nothing at all. Go writes an empty list or map that way where a field lacks `omitempty`
/// (`spec.drivers` of a CSINode does).
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de> + Default,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}
