//! Keeps claims, volumes and attribute classes that are in use.
