//! Setups with the usual choices, and those of whole groups on one host.

use std::io;
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use super::{Listening, Rdma, Remote, Setup, Wait};
use crate::tp::hello::Identity;
use crate::tp::session::Config;
use crate::tp::trust::{Channel, Dial, Dialer, Key, Listener, SessionId};

const LOOPBACK: &str = "127.0.0.1";

/// Random bytes of the system: numbers that are used once.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

impl Setup {
    /// A rank with the usual choices: it waits as suits its group, sockets have the system's
    /// buffers, nothing is encrypted, and there is no memory access over the network. It listens
    /// nowhere and knows of no other rank.
    #[must_use]
    pub fn new(config: Config, key: Key) -> Self {
        Self {
            wait: Wait::among(config.identity.layout.geometry().ranks),
            config,
            key,
            encrypt: false,
            listening: None,
            remotes: Vec::new(),
            buffer_bytes: None,
            rdma: Rdma::default(),
            collective: None,
            stop: Arc::default(),
        }
    }

    /// All ranks of a group that meet on the loopback of this host, in order: each listens already,
    /// at a port of the system's choice, and knows where the lower ones do. All else is as in
    /// [`Setup::new`] and [`Config::new`].
    ///
    /// # Errors
    /// The system has no port on which to listen.
    pub fn on_loopback(identity: Identity, key: &Key) -> io::Result<Vec<Self>> {
        let ranks = identity.layout.geometry().ranks;
        let (mut setups, mut lower) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let mut setup = Self::new(Config::new(rank, identity), key.clone());
            setup.remotes.clone_from(&lower);
            if rank + 1 < ranks {
                let listening = Listening::open(LOOPBACK, 0)?;
                let port = listening.addresses().first().map_or(0, |it| it.port());
                lower.push(Remote {
                    rank,
                    host: LOOPBACK.to_owned(),
                    port,
                });
                setup.listening = Some(listening);
            }
            setups.push(setup);
        }
        Ok(setups)
    }

    /// The proof of a connection that a higher rank makes.
    pub(super) fn listener(&self, session: SessionId) -> io::Result<Listener> {
        let ranks = self.config.identity.layout.geometry().ranks;
        let (key, own) = (self.key.clone(), self.config.rank);
        Ok(Listener::new(key, own, ranks, session, random()?).sealing(self.encrypt))
    }

    /// The proof of a connection to a lower rank.
    pub(super) fn dialer(
        &self,
        peer: u32,
        channel: Channel,
        session: SessionId,
    ) -> io::Result<Dialer> {
        let session = match channel {
            Channel::Control => SessionId::default(),
            Channel::Data => session,
        };
        let dial = Dial {
            channel,
            own: self.config.rank,
            peer,
            ranks: self.config.identity.layout.geometry().ranks,
            session,
        };
        Ok(Dialer::new(self.key.clone(), dial, random()?).sealing(self.encrypt))
    }
}
