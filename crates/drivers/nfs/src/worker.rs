//! Worker processes: protocol, main loop, and the driver's side with deadlines.
