//! The program that `pagoda bench` starts. The benches are a library; this package has the program
//! so that it is built and installed beside `pagoda`, which it runs.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pagoda_bench::main()
}
