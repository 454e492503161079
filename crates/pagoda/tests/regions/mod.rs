//! Regions of a manager on real userfaultfd, in memory of one zone or several.

#[path = "../support/mod.rs"]
mod support;

mod adopt;
mod budget;
mod exhausted;
mod extent;
mod huge;
mod huge_zones;
mod immovable;
mod in_thread;
mod presence;
mod region;
mod tiering;
mod working_set;
mod zone_kinds;
mod zones;
