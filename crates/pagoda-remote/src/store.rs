//! A file on a server, read by requests for parts of it.
//!
//! Requests run on one thread of their own, several at a time. Each is tried again after a cut or a
//! trouble of the server's, until the patience is over. This module must never take an answer for a
//! part of a file that was replaced meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, RetryConfig};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::address::Address;
use crate::failure::Failure;
use crate::transport::Connector;

/// Requests at a time. Half of them are kept for short ones, which a fault waits for.
const REQUESTS: usize = 16;

/// A part that is longer than this is a long one.
const SHORT_BYTES: u64 = 256 << 10;

/// Pauses before a request is tried again. It doubles from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The thread that requests run on. It ends with its last user.
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    all: Arc<Semaphore>,
    long: Arc<Semaphore>,
    end: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Worker {
    pub(crate) fn start() -> Result<Arc<Self>, Failure> {
        let failed = |error: std::io::Error| Failure::System(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let body = move || {
            let _ = runtime.block_on(ended);
            // A look-up of a name may still run, and has no bound.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("pagoda-remote".to_owned()).spawn(body).map_err(failed)?;
        let (all, long) = (Arc::new(Semaphore::new(REQUESTS)), Arc::new(Semaphore::new(REQUESTS / 2)));
        Ok(Arc::new(Self { handle, all, long, end: Some((end, thread)) }))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.end.take() {
            let _ = end.send(());
            // A request that ends last has it, and runs there.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Which content a file had when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) len_bytes: u64,
    tag: Option<String>,
    modified: Option<i64>,
}

impl Version {
    fn of(got: &GetResult) -> Self {
        let modified = Some(got.meta.last_modified.timestamp()).filter(|seconds| *seconds != 0);
        Self { len_bytes: got.meta.size, tag: got.meta.e_tag.clone(), modified }
    }

    /// Words that only this content has, if the server gives any.
    pub(crate) fn words(&self) -> Option<String> {
        let is_known = self.tag.is_some() || self.modified.is_some();
        is_known.then(|| format!("{self:?}"))
    }
}

/// A file on a server.
pub(crate) struct Store {
    store: Box<dyn ObjectStore>,
    key: Key,
    patience: Duration,
    is_s3: bool,
    worker: Arc<Worker>,
}

impl Store {
    pub(crate) fn new(address: &Address, patience: Duration, worker: Arc<Worker>) -> Result<Self, Failure> {
        let failed = |error: object_store::Error| Failure::Request(error.to_string());
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let pause = patience / 3;
        let (store, key): (Box<dyn ObjectStore>, _) = match address {
            Address::Http(url) => {
                let connector = Connector { pause, allows_http: Some(url.scheme() == "http") };
                let builder = HttpBuilder::new().with_url(url.as_str()).with_retry(retry);
                (Box::new(builder.with_http_connector(connector).build().map_err(failed)?), Key::default())
            }
            Address::S3 { bucket, key } => {
                let connector = Connector { pause, allows_http: None };
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
                (Box::new(builder.with_http_connector(connector).build().map_err(failed)?), key.clone())
            }
        };
        Ok(Self { store, key, patience, is_s3: matches!(address, Address::S3 { .. }), worker })
    }

    /// Asks for a part, and gives its bytes to `each` as they come, in order. The first request of
    /// a file has no version yet, and may ask for more than there is.
    ///
    /// After an error the part that `each` has had is right, too.
    pub(crate) async fn fetch(
        &self,
        part: Range<u64>,
        version: Option<&Version>,
        mut each: impl FnMut(&[u8]) + Send,
    ) -> Result<Version, Failure> {
        let mut done = 0;
        let mut last = None;
        let mut version = version.cloned();
        let tries = async {
            let is_long = part.end - part.start > SHORT_BYTES;
            // They are never closed.
            let _long = if is_long { self.worker.long.acquire().await.ok() } else { None };
            let _any = self.worker.all.acquire().await.ok();
            let mut pause = PAUSES.0;
            loop {
                let rest = part.start + done..part.end;
                match self.once(rest, &mut version, &mut done, &mut each).await {
                    Err(failure) if failure.may_pass() => last = Some(failure),
                    outcome => return outcome,
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        };
        match tokio::time::timeout(self.patience, tries).await {
            Ok(outcome) => outcome,
            // The reason is told where there is one.
            Err(_) => Err(last.unwrap_or(Failure::Late(self.patience.as_secs()))),
        }
    }

    async fn once(
        &self,
        part: Range<u64>,
        version: &mut Option<Version>,
        done: &mut u64,
        each: &mut (impl FnMut(&[u8]) + Send),
    ) -> Result<Version, Failure> {
        // A weak tag never matches.
        let tag =
            version.as_ref().and_then(|version| version.tag.clone()).filter(|tag| !tag.starts_with("W/"));
        let range = Some(GetRange::Bounded(part.clone()));
        let options = GetOptions { if_match: tag, range, ..GetOptions::default() };
        let got = self.store.get_opts(&self.key, options).await.map_err(|error| self.failure(&error))?;
        let found = Version::of(&got);
        // Also of another try: its bytes are not to be joined with those of a new file.
        if *version.get_or_insert_with(|| found.clone()) != found {
            return Err(Failure::Replaced);
        }
        let mut rest = got.range.end - got.range.start;
        if got.range.start != part.start || got.range.end > part.end {
            return Err(Failure::Wrong("it is another part than was asked for"));
        }
        let mut stream = got.into_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|_| Failure::Cut)?;
            if bytes.len() as u64 > rest {
                return Err(Failure::Wrong("it is longer than its part"));
            }
            each(&bytes);
            rest -= bytes.len() as u64;
            *done += bytes.len() as u64;
        }
        if rest == 0 { Ok(found) } else { Err(Failure::Cut) }
    }

    /// The reason below the errors of the client.
    fn failure(&self, error: &object_store::Error) -> Failure {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(failure) = error.downcast_ref::<Failure>() {
                return failure.clone();
            }
            cause = error.source();
        }
        // The text may have the query of an address, where there is one.
        if self.is_s3 {
            Failure::Request(error.to_string())
        } else {
            Failure::Wrong("its head can't be understood")
        }
    }
}
