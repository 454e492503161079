//! `pagoda.h` is the one that cbindgen makes of the source. With `PAGODA_WRITE_REFERENCE=1` it is
//! written.

use std::path::Path;

#[test]
fn the_header_is_made_from_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("a configuration");
    let made = cbindgen::generate_with_config(root, config).expect("a header");
    let mut text = Vec::new();
    made.write(&mut text);
    let path = root.join("pagoda.h");
    if std::env::var_os("PAGODA_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == text, "pagoda.h is old: run this test with PAGODA_WRITE_REFERENCE=1");
}
