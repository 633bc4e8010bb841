//! Talking to nodes' admin addresses: which ones, with which token, and how an order goes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Failure;
use crate::admin::{NodeStatus, OrderBody};
use crate::config::{self, Config};
use crate::operator::Done;
use crate::security::token::{ADMIN_TOKEN_VARIABLE, Token};

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long to wait before asking again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Which nodes to ask.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Nodes {
    /// A node's configuration, which names its admin address and its tokens.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// Admin addresses of nodes; orders need TICKETING_ADMIN_TOKEN then.
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required_unless_present = "config", value_parser = config::address)]
    admin: Vec<SocketAddr>,
}

/// The nodes to ask, found.
pub(super) struct Admins {
    addresses: Vec<SocketAddr>,
    token: Token,
    agent: ureq::Agent,
}

impl Nodes {
    /// Finds the addresses and the token.
    pub(super) fn find(&self) -> Result<Admins, Failure> {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .build()
            .into();
        let Some(file) = &self.config else {
            let token = match std::env::var_os(ADMIN_TOKEN_VARIABLE) {
                Some(value) if !value.is_empty() => {
                    let value = value.into_encoded_bytes();
                    Token::new(&value, ADMIN_TOKEN_VARIABLE).map_err(Failure::bad_usage)?
                }
                _ => Token::none(),
            };
            return Ok(Admins {
                addresses: self.admin.clone(),
                token,
                agent,
            });
        };
        let config = Config::from_file(file).map_err(Failure::bad_usage)?;
        let admin = config.admin.ok_or_else(|| {
            Failure::bad_usage(format!(
                "{} has no admin address: add admin = \"127.0.0.1:7225\"",
                file.display()
            ))
        })?;
        Ok(Admins {
            addresses: vec![admin],
            token: config
                .cluster
                .map_or(Token::none(), |cluster| cluster.admin_token),
            agent,
        })
    }
}

impl Admins {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Each address with the status of the node there.
    pub(super) fn statuses(&self) -> Vec<(SocketAddr, Result<NodeStatus, Failure>)> {
        let ask = |&address: &SocketAddr| (address, self.status(address));
        self.addresses.iter().map(ask).collect()
    }

    fn status(&self, admin: SocketAddr) -> Result<NodeStatus, Failure> {
        let unreachable = |error: ureq::Error| {
            Failure::failed(format!(
                "no status from http://{admin}/status: {error}; is the node running with --admin {admin}?"
            ))
        };
        let mut answer = self
            .agent
            .get(format!("http://{admin}/status"))
            .call()
            .map_err(unreachable)?;
        let text = answer.body_mut().read_to_string().map_err(unreachable)?;
        serde_json::from_str(&text).map_err(|error| {
            Failure::failed(format!(
                "http://{admin}/status is not a node of this version: {error}"
            ))
        })
    }

    /// Gives an order to whoever leads, or to the only node that is known, until it is accepted.
    /// `progress` is called with each reason why not yet.
    pub(super) fn order(
        &self,
        order: &OrderBody,
        within: Duration,
        mut progress: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + within;
        let mut last = Failure::failed("no node was asked");
        loop {
            for &address in &self.addresses {
                match self.send(address, order) {
                    Ok(Done::Accepted) => return Ok(()),
                    Ok(Done::Refused { why }) => return Err(Failure::failed(why)),
                    Ok(Done::Later { why }) => {
                        progress(&why);
                        last = Failure::failed(format!("not within {within:?}: {why}"));
                    }
                    Ok(Done::NotLeader { leader_slot }) => {
                        last = Failure::failed(match leader_slot {
                            Some(slot) => format!(
                                "the node at {address} does not lead: the one of slot {slot} does; ask that \
                                 one (--admin takes several addresses, with commas between)"
                            ),
                            None => format!(
                                "the node at {address} does not lead, and knows nobody who does"
                            ),
                        });
                    }
                    Err(failure) => last = failure,
                }
            }
            if Instant::now() + AGAIN_AFTER > deadline {
                return Err(last);
            }
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    fn send(&self, admin: SocketAddr, order: &OrderBody) -> Result<Done, Failure> {
        let token = std::str::from_utf8(self.token.bytes()).map_err(|_| {
            Failure::bad_usage("the admin token is not text, which an HTTP header must be")
        })?;
        if token.is_empty() {
            return Err(Failure::bad_usage(format!(
                "orders need the admin token: --config FILE names it, or set {ADMIN_TOKEN_VARIABLE}"
            )));
        }
        let failed = |error: ureq::Error| {
            Failure::failed(format!("no answer from http://{admin}/orders: {error}"))
        };
        let body = serde_json::to_string(order).map_err(Failure::failed)?;
        let mut answer = self
            .agent
            .post(format!("http://{admin}/orders"))
            .header("Authorization", format!("Bearer {token}"))
            .header("Content-Type", "application/json")
            .send(body)
            .map_err(failed)?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(failed)?;
        if !status.is_success() {
            return Err(Failure::failed(format!(
                "http://{admin}/orders: {status}: {text}"
            )));
        }
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("http://{admin}/orders: {error}")))
    }
}
