//! Tokens and certificates, and reading them again without closing anything.

use crate::config::Config;
use crate::security::shared::Shared;
use crate::security::tls::{Acceptor, PeerTls};
use crate::security::token::{Token, Tokens};

/// What a reload changes.
#[derive(Clone, Debug)]
pub(super) struct Secrets {
    pub(super) client_tokens: Shared<Tokens>,
    pub(super) client_tls: Option<Shared<Acceptor>>,
    pub(super) peer_tokens: Shared<Tokens>,
    pub(super) peer_tls: Option<Shared<PeerTls>>,
    pub(super) admin_token: Shared<Token>,
}

impl Secrets {
    pub(super) fn of(config: &Config) -> Self {
        let cluster = config.cluster.as_ref();
        let none = || Tokens::one(Token::none());
        Self {
            client_tokens: Shared::new(config.client_tokens.clone()),
            client_tls: config.tls.clone().map(Shared::new),
            peer_tokens: Shared::new(cluster.map_or_else(none, |c| c.peer_tokens.clone())),
            peer_tls: cluster.and_then(|c| c.peer_tls.clone()).map(Shared::new),
            admin_token: Shared::new(cluster.map_or(Token::none(), |c| c.admin_token.clone())),
        }
    }

    /// Reads everything again, and uses it if all of it is right. Connections that are open stay so; new
    /// ones show and prove what is new.
    pub(super) fn reload(&self, config: &Config) {
        let Some(source) = &config.source else {
            tracing::warn!(
                "told to read tokens and certificates again, but nothing came from a file"
            );
            return;
        };
        let new = match Config::from_file(source) {
            Ok(new) => new,
            Err(problems) => {
                tracing::error!("nothing is changed, as something is wrong: {problems}");
                return;
            }
        };
        if new.tls.is_some() != self.client_tls.is_some()
            || new.cluster.as_ref().is_some_and(|c| c.peer_tls.is_some()) != self.peer_tls.is_some()
        {
            tracing::error!(
                "nothing is changed: TLS is turned on or off by a start of the node, not while it runs"
            );
            return;
        }
        self.client_tokens.set(new.client_tokens);
        if let (Some(shared), Some(tls)) = (&self.client_tls, new.tls) {
            shared.set(tls);
        }
        if let Some(cluster) = new.cluster {
            self.peer_tokens.set(cluster.peer_tokens);
            self.admin_token.set(cluster.admin_token);
            if let (Some(shared), Some(tls)) = (&self.peer_tls, cluster.peer_tls) {
                shared.set(tls);
            }
        }
        tracing::info!("tokens and certificates are read again; other settings need a start");
    }
}
