//! The figures for people. Pure.

use super::runner::End;
use super::splits::Kernel;
use super::{At, Part, Programs};
use crate::report::table::{number, text_table};

impl Programs {
    /// For people.
    pub fn table(&self) -> String {
        let header = [
            "program",
            "budget",
            "native s",
            "kernel s",
            "pagoda s",
            "of kernel",
            "of native",
            "faults",
            "us a fault",
            "over",
        ];
        let mut table = text_table(header, 2..);
        for (name, figures) in &self.programs {
            for (part, at) in &figures.parts {
                table.add_row([
                    (*name).to_owned(),
                    format!("{:.0} MiB, {}", at.budget_mib, part.name()),
                    number(Some(figures.native.s), 2),
                    at.kernel.as_ref().map_or_else(|| "-".to_owned(), Kernel::cell),
                    cell(at.pagoda.s, at.pagoda.end),
                    number(at.ratio_kernel, 2),
                    number(at.ratio_native, 2),
                    at.pagoda.faults.map_or_else(|| "-".to_owned(), |faults| faults.to_string()),
                    number(at.pagoda.us_per_fault, 1),
                    at.over(),
                ]);
            }
        }
        let mut text = format!("{}\n\n{table}\n", self.machine);
        if let Some(reason) = &self.kernel_reason {
            text += &format!("no kernel side: {reason}\n");
        }
        for (name, reason) in &self.skipped {
            text += &format!("skipped {name}: {reason}\n");
        }
        text
    }
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::ThreeQuarters => "3/4",
            Self::Half => "1/2",
            Self::Quarter => "1/4",
        }
    }
}

impl Kernel {
    fn cell(&self) -> String {
        cell(self.s, self.end)
    }
}

impl At {
    fn over(&self) -> String {
        self.pagoda.over_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1} MiB"))
    }
}

fn cell(seconds: f64, end: End) -> String {
    match end {
        End::Ok => format!("{seconds:.2}"),
        End::Wrong => "wrong".to_owned(),
        End::Killed => "killed".to_owned(),
        End::Timeout => format!("over {seconds:.0}"),
    }
}
