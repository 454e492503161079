//! The remote store's password, from a file: every user of the machine can read a process's
//! arguments.
//!
//! This module must never show the password, in an error least of all.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pagoda::config::PASSWORD_BYTES_MAX;

use crate::exit_error::ExitError;

/// The longest password that is taken: one of Redis as `ACL GENPASS` makes it has 64 bytes.
const BYTES_MAX: usize = PASSWORD_BYTES_MAX;

/// The file's first line, without its end. A pipe will do: it is read once, and no further than
/// that line may reach.
///
/// # Errors
/// The file can't be read, or its first line is empty, too long or not UTF-8.
pub fn first_line(path: &Path) -> Result<String, ExitError> {
    let refusal = |why: &dyn std::fmt::Display| {
        ExitError::own(format!(
            "{}: {why}; put the password into its first line: --remote-password-file FILE",
            path.display()
        ))
    };
    let bytes = head(path).map_err(|error| refusal(&format_args!("it can't be read ({error})")))?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(refusal(&"its first line is empty"));
    }
    if line.len() > BYTES_MAX {
        return Err(refusal(&format_args!("its first line is longer than {BYTES_MAX} bytes")));
    }
    String::from_utf8(line.to_vec()).map_err(|_| refusal(&"its first line is not UTF-8"))
}

/// As much as a first line of the greatest length and its end may take.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(BYTES_MAX + 2);
    File::open(path)?.take(BYTES_MAX as u64 + 2).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), content).expect("written");
        first_line(file.path()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn it_is_the_first_line_without_its_end() {
        for content in ["x y@", "x y@\n", "x y@\r\n", "x y@\nmore\n"] {
            assert_eq!(read(content.as_bytes()).as_deref(), Ok("x y@"), "{content:?}");
        }
        assert_eq!(read(b" x \n").as_deref(), Ok(" x "), "blanks are its own");
        for end in ["", "\n", "\r\n", "\nmore"] {
            let longest = "x".repeat(BYTES_MAX);
            assert_eq!(read((longest.clone() + end).as_bytes()), Ok(longest));
        }
    }

    #[test]
    fn a_file_without_a_password_is_refused_and_not_shown() {
        for (content, why) in [
            (&b""[..], "is empty"),
            (b"\nsecret\n", "is empty"),
            (b"secret\xff\n", "is not UTF-8"),
            (&[b'z'; BYTES_MAX + 1], "is longer than 1024 bytes"),
        ] {
            let error = read(content).expect_err(why);
            assert!(error.contains(why) && !error.contains("secret") && !error.contains("zz"), "{error}");
        }
        let error = first_line(Path::new("/nonexistent/file")).expect_err("not there").to_string();
        assert!(error.starts_with("/nonexistent/file: it can't be read (No such file"), "{error}");
        let endless = first_line(Path::new("/dev/zero")).expect_err("no line").to_string();
        assert!(endless.contains("is longer than"), "{endless}");
    }
}
