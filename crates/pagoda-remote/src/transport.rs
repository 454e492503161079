//! The requests of an object store's client: over HTTP, with every answer checked.
//!
//! An answer to a request for a part has that part, or is an error with a reason of ours. No body
//! of another answer is read beyond a bound. Redirects are not followed: a server that is not
//! trusted must not choose which host this one talks to.

use async_trait::async_trait;
use futures_util::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, LOCATION, RANGE};
use http::{Response, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::redirect::Policy;
use std::time::Duration;
use url::Url;

use crate::failure::Failure;

/// The longest answer that is no part of a file: credentials, and the text of a refusal.
const ANSWER_BYTES_MOST: usize = 64 << 10;

/// Makes clients that check.
#[derive(Debug)]
pub(crate) struct Connector {
    /// How long a connection may take, or stand still.
    pub(crate) pause: Duration,
    /// Whether connections may be in the clear. None: by the client's options.
    pub(crate) allows_http: Option<bool>,
}

#[derive(Debug)]
struct Checked(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let key = object_store::ClientConfigKey::AllowHttp;
        let allowed = || options.get_config_value(&key).is_some_and(|value| value == "true");
        // Another part of the process may have chosen one: it serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(self.pause)
            .read_timeout(self.pause)
            // Large parts side by side: a connection each.
            .http1_only()
            .https_only(!self.allows_http.unwrap_or_else(allowed))
            .user_agent(concat!("pagoda/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = client
            .map_err(|error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) })?;
        Ok(HttpClient::new(Checked(client)))
    }
}

#[async_trait]
impl HttpService for Checked {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let asked = request.headers().get(RANGE).and_then(|range| part_of(range.to_str().ok()?));
        let answer = self.0.call(request).await.map_err(|error| {
            let failure = Failure::Connection(innermost(&error));
            HttpError::new(error.kind(), failure)
        })?;
        match asked {
            Some(asked) => {
                check(answer.status(), answer.headers(), asked)
                    .map_err(|failure| HttpError::new(HttpErrorKind::Unknown, failure))?;
                Ok(answer)
            }
            None => bounded(answer).await,
        }
    }
}

/// The first and the last byte of `bytes=FIRST-LAST`.
fn part_of(range: &str) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Checks the head of an answer to a request for a part.
fn check(status: StatusCode, headers: &HeaderMap, (first, last): (u64, u64)) -> Result<(), Failure> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    match status {
        StatusCode::PARTIAL_CONTENT => {}
        StatusCode::OK => return Err(Failure::NoRanges),
        StatusCode::PRECONDITION_FAILED => return Err(Failure::Replaced),
        StatusCode::RANGE_NOT_SATISFIABLE => return Err(Failure::Wrong("it ends before this part")),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            return Err(Failure::Trouble(status.to_string()));
        }
        _ if status.is_server_error() => return Err(Failure::Trouble(status.to_string())),
        _ if status.is_redirection() => {
            return Err(match text(LOCATION).and_then(|place| Url::parse(place).ok()) {
                Some(mut place) => {
                    place.set_query(None);
                    Failure::Moved(place.to_string())
                }
                None => Failure::Status(status.to_string()),
            });
        }
        _ => return Err(Failure::Status(status.to_string())),
    }
    let range = text(CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes ")?.split_once('/'));
    let Some((Some(part), Some(len))) =
        range.map(|(part, len)| (part_of(&format!("bytes={part}")), len.parse::<u64>().ok()))
    else {
        return Err(Failure::Wrong("it does not say which part it is"));
    };
    if len <= first || part != (first, last.min(len - 1)) {
        return Err(Failure::Wrong("it is another part than was asked for"));
    }
    let sent = text(CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    if sent != Some(part.1 - part.0 + 1) {
        return Err(Failure::Wrong("its length is not that of the part"));
    }
    Ok(())
}

/// The answer with its body read, within the bound.
async fn bounded(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = answer.into_parts();
    let (mut stream, mut bytes) = (body.bytes_stream(), Vec::new());
    while let Some(more) = stream.next().await {
        let more = more?;
        if bytes.len() + more.len() > ANSWER_BYTES_MOST {
            let failure = Failure::Wrong("it is too long");
            return Err(HttpError::new(HttpErrorKind::Unknown, failure));
        }
        bytes.extend_from_slice(&more);
    }
    Ok(Response::from_parts(parts, HttpResponseBody::from(bytes)))
}

/// The cause below all others, which tells the most.
fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_part_that_was_asked_for_is_taken() {
        let head = |range: &'static str, len: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_static(range));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static(len));
            headers
        };
        let part = StatusCode::PARTIAL_CONTENT;
        assert_eq!(check(part, &head("bytes 0-9/100", "10"), (0, 9)), Ok(()));
        assert_eq!(check(part, &head("bytes 90-99/100", "10"), (90, 120)), Ok(()));
        for (range, len) in [
            ("bytes 1-10/100", "10"),
            ("bytes 0-9/100", "11"),
            ("bytes 0-9/0", "10"),
            ("bytes 0-9/*", "10"),
            ("bytes 0-8/9", "10"),
            ("bytes 9-0/100", "10"),
            ("0-9/100", "10"),
            ("bytes 0-9/18446744073709551616", "10"),
            ("bytes 0-9/100", "-1"),
        ] {
            assert!(
                matches!(check(part, &head(range, len), (0, 9)), Err(Failure::Wrong(_))),
                "{range} {len}"
            );
        }
        let beyond = head("bytes 100-49/50", "10");
        assert!(matches!(check(part, &beyond, (100, 109)), Err(Failure::Wrong(_))));
        assert_eq!(check(StatusCode::OK, &head("", "100"), (0, 9)), Err(Failure::NoRanges));
        let mut moved = HeaderMap::new();
        moved.insert(LOCATION, HeaderValue::from_static("http://other/file?secret=1"));
        assert_eq!(
            check(StatusCode::FOUND, &moved, (0, 9)),
            Err(Failure::Moved("http://other/file".to_owned()))
        );
    }
}
