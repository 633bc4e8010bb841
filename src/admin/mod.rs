//! The admin address: metrics, health and status, on one thread of its own that
//! only reads published counters. Nothing here can slow a shard down.

mod metrics;
mod orders;
mod view;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};

pub use orders::{Desk, OrderBody};
pub use view::{ClusterStatus, MemberStatus, NodeStatus, NodeView};

/// Serves the admin address on a thread of its own, and gives the address back
/// as the kernel bound it.
///
/// # Errors
/// The kernel's reason when the address cannot be used.
pub fn start(
    address: SocketAddr,
    view: Arc<NodeView>,
    desk: Option<Desk>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            let served = runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(listener, router(view, desk)).await
            });
            if let Err(error) = served {
                tracing::error!("the admin address is not served any more: {error}");
            }
        })?;
    Ok(bound)
}

fn router(view: Arc<NodeView>, desk: Option<Desk>) -> Router {
    let orders = desk.map(|desk| {
        Router::new()
            .route("/orders", post(orders::take))
            .with_state(Arc::new(desk))
    });
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(exposition))
        .route("/status", get(status))
        .with_state(view)
        .merge(orders.unwrap_or_default())
}

async fn ready(State(view): State<Arc<NodeView>>) -> impl IntoResponse {
    if view.is_serving() {
        (StatusCode::OK, "serving\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not serving\n")
    }
}

async fn exposition(State(view): State<Arc<NodeView>>) -> impl IntoResponse {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::encode(&view) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TYPE)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            error.to_string(),
        ),
    }
}

async fn status(State(view): State<Arc<NodeView>>) -> Json<NodeStatus> {
    Json(view.status())
}
