//! Selectors of lists and watches: by labels (`app=web,tier in (a,b),!old`) and by fields (`spec.nodeName=n1`). They are
//! parsed as upstream parses them, with its error messages.

mod field;
mod label;

pub use field::FieldSelector;
pub use label::LabelSelector;

#[cfg(test)]
mod tests;
