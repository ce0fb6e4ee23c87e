//! Containers on the real kernel: needs root. One file for each thing that a container promises.

mod crash;
mod exec;
mod home;
mod isolation;
mod life;
mod logs;
mod volumes;
