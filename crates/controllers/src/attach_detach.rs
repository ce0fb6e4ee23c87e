//! Attaches volumes to the nodes of their pods, and detaches them.
