//! Commands and options of `pagoda`, each from the outside.

mod doctor;
mod export;
mod fetch_ahead;
mod image;
#[cfg(feature = "remote")]
mod image_remote;
#[cfg(target_os = "linux")]
mod preload;
mod remote;
mod trace;
