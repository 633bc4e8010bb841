//! What must end the process does: a panic in any task of any executor.

use std::process::Command;

use ticketing::fatal::{Fatal, exit_on_panic};
use ticketing::runtime::{self, Executor};

const CHILD: &str = "TICKETING_TEST_CHILD_PANICS";

/// In a child process of its own: an executor one of whose tasks panics, while
/// its main task would go on for ever.
#[test]
fn child_panics_in_a_task() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    exit_on_panic();
    let executor = Executor::spawn("test", None, || async {
        runtime::spawn_local(async { panic!("a fault in one task") });
        loop {
            runtime::sleep(std::time::Duration::from_secs(1)).await;
        }
    })
    .expect("an executor");
    executor.join().expect("never reached");
}

#[test]
fn a_panic_in_any_task_ends_the_whole_process_with_its_code() {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_panics_in_a_task", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child ran");
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(Fatal::Panic.code()), "{said}");
    assert!(said.contains("a fault in one task"), "{said}");
}
