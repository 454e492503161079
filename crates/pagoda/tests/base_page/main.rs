//! Base pages on real userfaultfd: what they cost by count, and that a program can't tell them from 4 KiB.

#[cfg(target_arch = "x86_64")]
mod differential;
mod faults;

fn skip() -> bool {
    let skip = !pagoda::userfaultfd_allows_managers();
    if skip {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED base pages: this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    skip
}
