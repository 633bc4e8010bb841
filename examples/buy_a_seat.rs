//! What an event server does: one seat, one buyer at a time.
//!
//! Start a server first: `ticketing serve --data-dir DIR`.

use std::time::Duration;

use published::TicketBroker;

#[tokio::main]
async fn main() {
    let broker = TicketBroker::connect_loopback(["127.0.0.1:5225"]);
    if !broker.wait_ready(Duration::from_secs(5)).await {
        eprintln!("no server on 127.0.0.1:5225; start one: ticketing serve --data-dir DIR");
        std::process::exit(1);
    }
    // Stand in line for at most 5 s; hold for at most 30 s; choose the lease
    // longer than the wait and the work together.
    let (wait, lease, work) = (
        Duration::from_secs(5),
        Duration::from_secs(30),
        Duration::from_secs(1),
    );
    let ticket = match broker.acquire("seat/A-12", wait, lease, work).await {
        Ok(ticket) => ticket,
        Err(error) => {
            eprintln!("not this time: {error}");
            std::process::exit(1);
        }
    };
    println!("seat/A-12 is ours, fencing token {}", ticket.token());
    // Here the business write belongs, in one transaction with the check that
    // the token is above the row's mark, which it raises.
    match ticket.release().await {
        Ok(_) => println!("seat/A-12 given back"),
        Err(error) => println!("the lease will end it: {error}"),
    }
}
