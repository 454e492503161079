//! Policies in every order of their steps that shuttle's schedulers find, and in simulations of the
//! threads, zones and hosts around them.

mod entry_model;
mod forking_model;
mod migrate_sim;
mod queue_model;
mod received_model;
mod release_model;
mod release_sim;
mod spans_model;
mod support;
mod zone_interleave;
mod zone_model;
mod zone_reclaim_sim;
mod zone_sim;
