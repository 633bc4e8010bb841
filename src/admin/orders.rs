//! Operators' orders: taken in with a token of their own, and handed to the consensus role.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use ticketing_raftlog::NodeId;

use crate::lanes::Sender;
use crate::lanes::messages::ToConsensus;
use crate::limits::ORDER_WITHIN;
use crate::operator::{Done, Order, Slip};
use crate::security::shared::Shared;
use crate::security::token::Token;

/// Where orders are taken in.
#[derive(Debug)]
pub struct Desk {
    /// To the consensus role.
    pub to_consensus: Sender<ToConsensus>,
    /// What an operator must know.
    pub token: Shared<Token>,
}

/// An order as it comes over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "order")]
pub enum OrderBody {
    /// A node joins, without a vote.
    AddLearner {
        /// Its identity.
        node_id: String,
        /// Where it listens for the other nodes.
        peer_addr: SocketAddr,
    },
    /// A node without a vote leaves.
    RemoveLearner {
        /// Its identity.
        node_id: String,
    },
    /// A learner takes a voter's place.
    Replace {
        /// The place.
        slot: u8,
        /// The learner.
        node_id: String,
    },
    /// Leadership goes to that slot's node.
    Transfer {
        /// The place.
        slot: u8,
    },
    /// The node hands leadership over and takes none.
    Drain,
}

impl OrderBody {
    fn parse(&self) -> Result<Order, String> {
        let node = |text: &String| {
            NodeId::parse(text).ok_or_else(|| {
                format!("\"{text}\" is no node id: 32 hex digits, as `ticketing status` shows them")
            })
        };
        Ok(match self {
            Self::AddLearner { node_id, peer_addr } => Order::AddLearner {
                node: node(node_id)?,
                address: *peer_addr,
            },
            Self::RemoveLearner { node_id } => Order::RemoveLearner(node(node_id)?),
            Self::Replace { slot, node_id } => Order::Replace {
                slot: *slot,
                new: node(node_id)?,
            },
            Self::Transfer { slot } => Order::Transfer(Some(*slot)),
            Self::Drain => Order::Drain,
        })
    }
}

/// Takes an order in, and says what came of it.
pub(super) async fn take(
    State(desk): State<Arc<Desk>>,
    headers: HeaderMap,
    Json(body): Json<OrderBody>,
) -> Response {
    let shown = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if !shown.is_some_and(|shown| desk.token.get().is(shown)) {
        let why = "orders need the admin token: --config FILE names it, or TICKETING_ADMIN_TOKEN";
        return (StatusCode::UNAUTHORIZED, why).into_response();
    }
    let order = match body.parse() {
        Ok(order) => order,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    tracing::debug!(?order, "an operator's order");
    let done = tokio::task::spawn_blocking(move || {
        let (answer, answered) = sync_channel(1);
        let slip = ToConsensus::Operator(Slip { order, answer });
        if desk.to_consensus.try_send(slip).is_err() {
            return None;
        }
        answered.recv_timeout(ORDER_WITHIN).ok()
    })
    .await;
    let done = done.ok().flatten().unwrap_or_else(|| Done::Later {
        why: "the node did not get to it in time".to_owned(),
    });
    Json(done).into_response()
}
