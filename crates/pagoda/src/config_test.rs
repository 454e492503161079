//! A configuration goes through the environment unchanged, and an error names the wrong part.

use proptest::prelude::*;

use super::*;

fn config(
    counters: Option<Vec<u8>>,
    store: Vec<u8>,
    budget: u64,
    file: u64,
    [best_effort, fetch_ahead, io_uring, is_address_limited, core]: [bool; 5],
) -> Config {
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    Config {
        budget: Bytes::new(budget),
        base_page: BasePage::K16,
        counters: counters.map(path),
        store_directory: path(store),
        file_limit: Bytes::new(file),
        best_effort,
        fetch_ahead,
        io_uring,
        is_address_limited,
        core,
        ..Config::library()
    }
}

proptest! {
    #[test]
    fn any_path_comes_back_as_it_went(
        counters in proptest::option::of(proptest::collection::vec(1u8.., 1..40)),
        store in proptest::collection::vec(1u8.., 1..40),
        budget: u64, file: u64, give_up_ms: u64, flags: [bool; 5], remote in proptest::option::of("[ -~]{1,9}"), remote_limit: u64,
        zones in proptest::collection::vec("[a-z]{1,9}=[0-9]{1,9}(|@remote|@node[0-9]{1,5})", 0..4),
        trace in proptest::option::of("/[ -~]{1,9}"), password in proptest::option::of("/[ -~]{1,9}"),
    ) {
        let mut config = config(counters, store, budget, file, flags);
        if let Some(password) = remote {
            let mut address: RemoteAddress = "redis://127.0.0.1:6379".parse().expect("an address");
            address.password = Some(password);
            config.remote = Some(address);
            config.remote_limit = Bytes::new(remote_limit);
        }
        if !zones.is_empty() {
            config.zones = zones.iter().map(|zone| zone.parse().expect("a zone")).collect();
            config.zone_policy = ZonePolicy::ALL[config.zones.len()];
        }
        config.trace = trace.map(PathBuf::from);
        config.give_up = Duration::from_millis(give_up_ms);
        config.remote_password = password.map(PathBuf::from);
        prop_assert_eq!(Config::from_env(config.to_env().as_bytes()), Ok(config));
    }

    #[test]
    fn no_text_makes_reading_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Config::from_env(&text).is_err());
    }
}

#[test]
fn a_password_is_read_where_it_is_and_kept_by_its_reader() {
    let secret = pagoda_linux::mem::secret::Secret::create(c"a-test's", b"sesame").expect("memory");
    let mut config = config(None, b"/s".to_vec(), 1, 2, [false; 5]);
    config.remote = Some("redis://127.0.0.1:6379".parse().expect("an address"));
    config.remote_password = Some(secret.path());
    let text = config.to_env().into_string().expect("UTF-8");
    assert!(!text.contains("sesame"), "{text}");
    let mut other = Config::from_env(text.as_bytes()).expect("readable");
    other.keep_password();
    drop(secret);
    let password = |config: &Config| {
        config.remote_with_password().map(|remote| remote.expect("there is one").password).ok()
    };
    assert_eq!(password(&other), Some(Some("sesame".to_owned())));
    assert_eq!(password(&config), None, "its maker is gone");
    config.keep_password();
    assert!(config.remote_password.is_some(), "the engine says so when it starts");
}

#[test]
fn an_error_names_the_wrong_part() {
    let good = "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1";
    assert!(Config::from_env(good.as_bytes()).is_ok());
    let cases = [
        ("", ConfigError::NotAField { at_byte: 0 }),
        ("budget=1;base", ConfigError::NotAField { at_byte: 9 }),
        ("budget=1;colour=2", ConfigError::UnknownField { at_byte: 9 }),
        ("budget=1;budget=1", ConfigError::Twice(BUDGET)),
        ("base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::Missing(BUDGET)),
        ("budget=x;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(BUDGET)),
        ("budget=1;base=5K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(BASE)),
        ("budget=1;base=64K;store=;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
        ("budget=1;base=64K;store=/%4;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
        ("budget=1;base=64K;store=/%+1;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
        ("budget=1;base=64K;store=/%00;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
        ("budget=1;base=64K;store=/s;file=2;best-effort=2", ConfigError::BadValue(BEST_EFFORT)),
        ("budget=1;base=64K;store=/s;file=2;best-effort=0", ConfigError::Missing(FETCH_AHEAD)),
        ("budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=", ConfigError::BadValue(FETCH_AHEAD)),
        (
            "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;remote=x",
            ConfigError::BadValue(REMOTE),
        ),
        (
            "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;remote=redis://[::1]:1",
            ConfigError::Missing(REMOTE_LIMIT),
        ),
        (
            "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1",
            ConfigError::Missing(ZONE_POLICY),
        ),
        (
            "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1,b;zone-policy=fair",
            ConfigError::BadValue(ZONES),
        ),
        (
            "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1;zone-policy=fairest",
            ConfigError::BadValue(ZONE_POLICY),
        ),
    ];
    for (text, error) in cases {
        assert_eq!(Config::from_env(text.as_bytes()), Err(error), "{text}");
    }
}
