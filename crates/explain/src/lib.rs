//! Why is my volume not there yet: the same rules as the controllers, asked from outside.
