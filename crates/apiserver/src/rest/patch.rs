//! Patches: applied to the object as it is, and again if that changed meanwhile.

use bytes::Bytes;

use super::body::no_schema;
use super::create::place;
use super::options::{FieldValidation, WriteOptions};
use super::route::Target;
use super::{Api, meta};
use crate::access::User;
use crate::patch::{Patch, apply, unfit};
use crate::schema;
use crate::status::Refusal;

/// What a patch may be called, those that are refused with words of their own included.
const PATCHES: &[&str] = &[
    "json-patch+json",
    "merge-patch+json",
    "strategic-merge-patch+json",
    "apply-patch+yaml",
    "apply-patch+cbor",
];

impl Api {
    /// Changes an object as the patch says; answers how it is stored.
    pub(crate) async fn patch(
        &self,
        user: &User,
        target: &Target,
        media: &str,
        body: &[u8],
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Bytes, Refusal> {
        let kind = target.kind;
        let suffix = media.strip_prefix("application/").unwrap_or("");
        if !PATCHES.contains(&suffix) {
            return Err(Refusal::generic(415, "UnsupportedMediaType", "415: Unsupported Media Type"));
        }
        let patch = Patch::parse(media, body)?;
        let schema = schema::of(kind.group, kind.kind).ok_or_else(|| no_schema(kind.kind))?;
        let twice =
            if options.fields == FieldValidation::Ignore { Vec::new() } else { schema::duplicates(body) };
        self.change(user, target, options, warnings, &mut |old, told| {
            let patched = apply(schema, old, &patch)?;
            let conformed = schema
                .conform(patched.clone())
                .map_err(|error| unfit(&patch, &patched, error.to_string()))?;
            let mut strange = twice.clone();
            strange.extend(conformed.unknown);
            match options.fields {
                FieldValidation::Ignore => {}
                FieldValidation::Warn => told.extend(strange),
                FieldValidation::Strict if strange.is_empty() => {}
                FieldValidation::Strict => {
                    let why = format!("strict decoding error: {}", strange.join(", "));
                    return Err(unfit(&patch, &patched, &why));
                }
            }
            let mut object = conformed.object;
            object["kind"] = kind.kind.into();
            object["apiVersion"] = kind.api_version().into();
            place(&mut object, target)?;
            super::update::check_name(&object, &target.name)?;
            if meta::version(&object).is_empty() && kind.unconditional_update {
                meta::keep(&mut object, old, &["resourceVersion"]);
            }
            (kind.default)(&mut object);
            Ok(object)
        })
        .await
    }
}
