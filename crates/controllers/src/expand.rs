//! Tells of claims that wait for their driver to expand them.
