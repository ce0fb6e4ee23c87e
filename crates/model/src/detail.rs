//! Parts of an object that only a full view has.

use std::ops::{Deref, DerefMut};

/// A part of an object that only a full view has. In a slim view it uses no memory but its pointer, and reads as empty.
#[derive(Debug, Clone)]
pub struct Detail<T>(Option<Box<T>>);

/// A type with a shared empty value.
pub trait Empty: Default + 'static {
    /// The empty value.
    fn empty() -> &'static Self;
}

/// Implements [`Empty`] with a static default value.
macro_rules! impl_empty {
    ($($of:ty),*) => {$(
        impl crate::detail::Empty for $of {
            fn empty() -> &'static Self {
                static EMPTY: std::sync::LazyLock<$of> = std::sync::LazyLock::new(<$of>::default);
                &EMPTY
            }
        }
    )*};
}

pub(crate) use impl_empty;

impl<T> Default for Detail<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<T> for Detail<T> {
    fn from(part: T) -> Self {
        Self(Some(Box::new(part)))
    }
}

impl<T: Empty> Deref for Detail<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(part) => part,
            None => T::empty(),
        }
    }
}

impl<T: Empty> DerefMut for Detail<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty + PartialEq> PartialEq for Detail<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Empty + Eq> Eq for Detail<T> {}
