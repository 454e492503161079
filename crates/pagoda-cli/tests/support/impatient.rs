//! A patience of three seconds in place of ten, for programs that wait in vain for memory and are
//! ended. Only for those: another may be ended too early on a busy machine.

/// Words that come before those of the program: a shell that executes it with this patience.
pub const IMPATIENT: [&str; 4] =
    ["sh", "-c", "export PAGODA_CONFIG=\"$PAGODA_CONFIG;give-up=3000\"; exec \"$@\"", "sh"];
