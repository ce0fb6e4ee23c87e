//! Tolerant decoding. Enums that other components may extend decode an unknown value as `Unknown`, so that one such
//! object cannot stop a watch; no rule draws a conclusion from it.

/// Declares an enum with the values that Kubernetes uses, and `Unknown` for every other value.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// Absent, or a value that this version does not know: nothing follows from it.
            #[default]
            Unknown,
        }

        impl $name {
            /// The value as Kubernetes spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown => "Unknown",
                }
            }

            /// Parses a value as Kubernetes spells it; any other is `Unknown`.
            pub fn from_name(name: &str) -> Self {
                match name {
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
                let name = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(name.map_or(Self::Unknown, |name| Self::from_name(&name)))
            }
        }
    };
}

pub(crate) use open_enum;

/// Decodes `null` as the default value. Go encodes an empty list or map as `null` if the field has no `omitempty`
/// (such as `spec.drivers` of a CSINode).
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de> + Default,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}
