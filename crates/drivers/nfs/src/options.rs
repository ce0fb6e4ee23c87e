//! Mount options: from typed parameters and text to what the kernel takes.
