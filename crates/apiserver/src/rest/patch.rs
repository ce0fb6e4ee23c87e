//! The patch verb: applies the patch to the current object, again if the object changes in between.

use bytes::Bytes;

use super::body::no_schema;
use super::create::set_namespace;
use super::options::{FieldValidation, WriteOptions};
use super::route::Target;
use super::{Api, meta};
use crate::access::User;
use crate::patch::{Patch, apply, invalid_result_error};
use crate::schema;
use crate::status::StatusError;

/// The known patch types, including those that are rejected with a specific error.
const PATCH_TYPES: &[&str] = &[
    "json-patch+json",
    "merge-patch+json",
    "strategic-merge-patch+json",
    "apply-patch+yaml",
    "apply-patch+cbor",
];

impl Api {
    /// Patches an object. Returns it as stored.
    pub(crate) async fn patch(
        &self,
        user: &User,
        target: &Target,
        media: &str,
        body: &[u8],
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Bytes, StatusError> {
        let kind = target.kind;
        let suffix = media.strip_prefix("application/").unwrap_or("");
        if !PATCH_TYPES.contains(&suffix) {
            return Err(StatusError::generic(415, "UnsupportedMediaType", "415: Unsupported Media Type"));
        }
        let patch = Patch::parse(media, body)?;
        let schema = schema::find(kind.group, kind.kind).ok_or_else(|| no_schema(kind.kind))?;
        let duplicates_found = if options.fields == FieldValidation::Ignore {
            Vec::new()
        } else {
            schema::duplicate_fields(body)
        };
        self.change(user, target, options, warnings, &mut |old, new_warnings| {
            let patched = apply(schema, old, &patch)?;
            let conformed = schema
                .conform(patched.clone())
                .map_err(|error| invalid_result_error(&patch, &patched, error.to_string()))?;
            let mut field_problems = duplicates_found.clone();
            field_problems.extend(conformed.unknown);
            match options.fields {
                FieldValidation::Ignore => {}
                FieldValidation::Warn => new_warnings.extend(field_problems),
                FieldValidation::Strict if field_problems.is_empty() => {}
                FieldValidation::Strict => {
                    let reason = format!("strict decoding error: {}", field_problems.join(", "));
                    return Err(invalid_result_error(&patch, &patched, &reason));
                }
            }
            let mut object = conformed.object;
            object["kind"] = kind.kind.into();
            object["apiVersion"] = kind.api_version().into();
            set_namespace(&mut object, target)?;
            super::update::check_name(&object, &target.name)?;
            if meta::version(&object).is_empty() && kind.unconditional_update {
                meta::copy_fields(&mut object, old, &["resourceVersion"]);
            }
            (kind.default)(&mut object);
            Ok(object)
        })
        .await
    }
}
