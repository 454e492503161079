//! The address of a file on a server, and of those beside it.

use std::ffi::OsStr;
use std::path::PathBuf;

use object_store::path::Path as Key;
use url::Url;

use crate::failure::Failure;

/// Where a file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Http(Url),
    S3 { bucket: String, key: Key },
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let refused = |why: &str| Failure::Address(why.to_owned());
        let url = Url::parse(text).map_err(|error| refused(&format!("the address is none ({error})")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("a user name in the address is not used"));
        }
        if url.host_str().is_none_or(str::is_empty) || url.path().ends_with('/') || url.path().is_empty() {
            return Err(refused("the address has no host or names no file"));
        }
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(url)),
            "s3" if url.query().is_none() => {
                let key = Key::from_url_path(url.path());
                let key = key.map_err(|error| refused(&format!("the key is not usable ({error})")))?;
                Ok(Self::S3 { bucket: url.host_str().unwrap_or_default().to_owned(), key })
            }
            _ => Err(refused("the address is of another kind")),
        }
    }

    /// How it is shown: without its query.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            Self::Http(url) => {
                let mut url = url.clone();
                url.set_query(None);
                url.set_fragment(None);
                PathBuf::from(url.to_string())
            }
            Self::S3 { bucket, key } => PathBuf::from(format!("s3://{bucket}/{key}")),
        }
    }

    /// The file of this name in the same directory.
    pub(crate) fn beside(&self, name: &OsStr) -> Result<Self, Failure> {
        let refused = || Failure::Address(format!("no file beside it can be named {}", name.display()));
        // One part of a path: a stranger's image must not make us ask for a file elsewhere.
        let name = name.to_str().filter(|name| !name.is_empty() && !name.contains('/') && *name != "..");
        let name = name.ok_or_else(refused)?;
        match self {
            Self::Http(url) => {
                let mut url = url.clone();
                url.path_segments_mut().map_err(|()| refused())?.pop().push(name);
                Ok(Self::Http(url))
            }
            Self::S3 { bucket, key } => {
                let mut parts: Vec<_> = key.parts().collect();
                parts.pop();
                parts.push(name.into());
                Ok(Self::S3 { bucket: bucket.clone(), key: parts.into_iter().collect() })
            }
        }
    }

    /// The file whose name is this one's and a suffix.
    pub(crate) fn suffixed(&self, suffix: &str) -> Self {
        match self {
            Self::Http(url) => {
                let mut url = url.clone();
                url.set_path(&format!("{}{suffix}", url.path()));
                Self::Http(url)
            }
            Self::S3 { bucket, key } => {
                Self::S3 { bucket: bucket.clone(), key: Key::from(format!("{key}{suffix}")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_beside_keep_the_host_and_the_query() {
        let image = Address::parse("http://host:81/a%20b/mem.pim?token=secret").expect("an address");
        assert_eq!(image.shown(), Path::new("http://host:81/a%20b/mem.pim"));
        assert_eq!(
            image.suffixed(".ws"),
            Address::parse("http://host:81/a%20b/mem.pim.ws?token=secret").expect("an address")
        );
        let base = image.beside(OsStr::new("the base?.pim")).expect("a name");
        assert_eq!(base.shown(), Path::new("http://host:81/a%20b/the%20base%3F.pim"));
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert!(image.beside(OsStr::new(name)).is_err(), "{name}");
        }
        let object = Address::parse("s3://bucket/dir/mem.pim").expect("an address");
        assert_eq!(object.suffixed(".ws").shown(), Path::new("s3://bucket/dir/mem.pim.ws"));
        let base = object.beside(OsStr::new("base.pim")).expect("a name");
        assert_eq!(base.shown(), Path::new("s3://bucket/dir/base.pim"));
    }

    #[test]
    fn what_names_no_file_is_refused() {
        let wrong = [
            "http://host",
            "http://host/dir/",
            "http://u:p@host/a",
            "ftp://host/a",
            "s3://b/k?x=1",
            "s3:///k",
        ];
        for text in wrong {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
