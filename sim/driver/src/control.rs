//! Functions that no driver has, for programs that know that they talk to a simulation: tests set
//! the machine and its faults and read the ledger in the process that runs them.

use ds4_sim::{FaultPlan, Instruments};

use crate::call::export;
use crate::config::Config;
use crate::driver::Driver;
use crate::raw::{Out, Text, TextOut};
use crate::status::Status;

export! {
    // Starts a new machine in place of the one there was. The text has lines of `NAME=VALUE` with
    // the names of the variables; empty, the environment is read.
    fn ds4_simulated_configure(text: Text) {
        let text = text.get()?;
        let config = if text.trim().is_empty() {
            Config::from_environment()
        } else {
            Config::from_text(text)
        };
        Driver::replace(&config, true).map(|_| ())
    }

    // Starts a plan of faults, as JSON; an empty text ends it.
    fn ds4_simulated_set_faults(json: Text) {
        let driver = Driver::get()?;
        let json = json.get()?;
        if json.is_empty() {
            driver.sim.clear_faults();
            driver.sim.restore_memory();
            return Ok(());
        }
        let plan = FaultPlan::from_json(json.as_bytes(), "faults");
        let plan = plan.map_err(|_| Status::INVALID_VALUE)?;
        driver.sim.set_faults(plan).map_err(|_| Status::INVALID_VALUE)
    }

    // How often each fault fired: a line `ENTRY KIND FIRED MATCHED` for each.
    fn ds4_simulated_fault_report(text: TextOut, room: usize) {
        let report = Driver::get()?.sim.fault_report();
        let lines = report.iter().map(|fault| {
            format!("{} {} {} {}\n", fault.entry, fault.kind.name(), fault.fired, fault.matched)
        });
        text.put(&lines.collect::<String>(), room)
    }

    // The ledger's findings so far, a line for each, taken out of it; with `shutdown`, all that is
    // still held is one. `count` gets their number.
    fn ds4_simulated_findings(text: TextOut, room: usize, count: Out<u64>, shutdown: u32) {
        let driver = Driver::get()?;
        let ledger = driver.sim.ledger();
        if shutdown != 0 {
            ledger.check_shutdown();
        }
        count.put(ledger.finding_count())?;
        let lines = ledger.take_findings().into_iter().map(|finding| format!("{finding}\n"));
        text.put(&lines.collect::<String>(), room)
    }

    // A hash of every device's accounting: equal before and after a call that was refused.
    fn ds4_simulated_state_hash(hash: Out<u64>) {
        hash.put(Driver::get()?.sim.state_hash())
    }
}
