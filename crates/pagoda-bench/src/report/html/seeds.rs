//! The published figures of each mechanism, and the bench that measures it here.
//!
//! They are of other people's code on other machines: beside our figures, never mixed with them.

/// One mechanism.
pub struct Seed {
    pub title: &'static str,
    /// The published figure, with its machine and set-up.
    pub published: &'static str,
    /// The bench that measures the mechanism here.
    pub bench: &'static str,
}

/// All mechanisms with a published figure.
pub static SEEDS: [Seed; 5] = [
    Seed {
        title: "Huge frames are cleared so that the page that is waited for comes last",
        published: "anon-w-seq with 72 processes on 36 cores with 72 threads: throughput +28.3%, cache misses 33.4 to 31.7%, \
                    user time -7.9%; with 4 processes no visible change",
        bench: "clear",
    },
    Seed {
        title: "Zero pages of a migration are never written",
        published: "16 processors, 64 GB, 2 channels: idle with 2 GB used 121,357 to 2,716 faults, 7,771 to 7,335 ms, standing still for 153 to 180 ms; with 56 GB \
                    used 2,672,677 to 52,967 faults, while the time rose from 12,987 to 16,825 ms, standing still for 159 to 165 ms",
        bench: "migrate",
    },
    Seed {
        title: "What a closing owner had stored is freed in batches, in the background",
        published: "8 GB phone: an application's start while others exit 1,512 to 1,204 ms, a camera's preview 352 to 205 ms",
        bench: "release",
    },
    Seed {
        title: "Base pages of 64 KiB",
        published: "kernels with 64 KiB pages of their own: Redis +250% throughput, MySQL +16.9%, SPEC +4.17% over 4 KiB with huge \
                    pages; a source tree in the page cache +47.1%",
        bench: "base-page",
    },
    Seed {
        title: "Zones take turns by their batches",
        published: "streaming read of data twice the memory: +10.45% with 1 thread, +12.70, +11.74, +6.86 and +8.49% with 2, 4, 8 \
                    and 16; four cases by counts",
        bench: "zones",
    },
];
