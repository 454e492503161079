# The five things that one does here. `just` lists them; each is one command that works without it.

_list:
    @just --list

# The command and the library that `pagoda run` preloads
build:
    cargo build --release

# All tests, in their normal form; names choose some of them
test *names: build
    cargo test --release --no-fail-fast -- {{names}}

# All tests in their long form (CONTRIBUTING.md lists it)
test-long *names: build
    PAGODA_LONG_TESTS=1 cargo test --release --no-fail-fast -- {{names}}

# The benches by name and options, or their list
bench *arguments: build
    ./target/release/pagoda bench {{arguments}}

# The documentation of the crates, with warnings as errors, and the book where mdbook is installed
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
    if command -v mdbook >/dev/null; then mdbook build docs; fi
