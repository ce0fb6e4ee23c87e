//! The API's rules as tables: what is asked, in which state, and what is answered.
