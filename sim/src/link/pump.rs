//! Moving bytes between a rank and its connections: handshakes, commands, gates and rings.

use ds4_engine::tp::time::Time;
use ds4_engine::tp::trust::{Channel, Proven, Refused, Step};

use super::pipe::Pipe;
use super::run::{Bring, Connection, Node, World};

impl World<'_> {
    /// Moves bytes between a rank and one of its connections.
    pub(super) fn serve(&mut self, rank: u32, index: usize) -> bool {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(index) else {
            return false;
        };
        let side = if connection.listener == rank {
            0
        } else if connection.dialer == rank {
            1
        } else {
            return false;
        };
        if connection.shaking[side] {
            return self.shake(rank, index, side);
        }
        let Connection {
            listener,
            dialer,
            channel,
            up,
            down,
            closed,
            ..
        } = connection;
        let (peer, reading, writing) = match side {
            0 => (*dialer, up, down),
            _ => (*listener, down, up),
        };
        let node = &mut self.nodes[rank as usize];
        let local = node.skew.local(now);
        let mut moved = false;
        match channel {
            Channel::Control => {
                loop {
                    let count = reading.read(now, node.session.control_to_read(peer));
                    if count == 0 {
                        break;
                    }
                    node.session.control_read(local, peer, count);
                    node.actor.heed(local, &mut node.session);
                    moved = true;
                }
                loop {
                    let count = writing.write(now, node.session.control_to_write(peer));
                    if count == 0 {
                        break;
                    }
                    node.session.control_wrote(peer, count);
                    moved = true;
                }
            }
            Channel::Data if node.actor.in_ring() => {
                moved |= write_ring(now, node, peer, writing);
                moved |= read_ring(now, local, node, peer, reading);
            }
            Channel::Data => {
                moved |= write_gate(now, node, peer, writing);
                moved |= read_gate(now, local, node, peer, reading);
            }
        }
        if reading.ended(now) && !closed[side] {
            closed[side] = true;
            node.session.closed(local, peer, *channel);
            moved = true;
        }
        moved
    }

    /// Moves bytes of the handshake.
    fn shake(&mut self, rank: u32, index: usize, side: usize) -> bool {
        let now = self.now;
        let connection = &mut self.connections[index];
        let Bring::Shaking(shaking) = &mut connection.bring else {
            return false;
        };
        let (listener, dialer) = shaking.as_mut();
        let node = &mut self.nodes[rank as usize];
        let local = node.skew.local(now);
        let session = &node.session;
        let mut moved = false;
        let mut result = Step::More;
        loop {
            let (read, wrote) = if side == 0 {
                let read = connection.up.read(now, listener.to_read());
                if read > 0 {
                    let step = listener.read(read, |peer, channel| session.awaits(peer, channel));
                    if step != Step::More {
                        result = step;
                    }
                }
                let wrote = connection.down.write(now, listener.to_write());
                listener.wrote(wrote);
                (read, wrote)
            } else {
                let read = connection.down.read(now, dialer.to_read());
                if read > 0 {
                    result = dialer.read(read);
                }
                let wrote = connection.up.write(now, dialer.to_write());
                dialer.wrote(wrote);
                (read, wrote)
            };
            moved |= read + wrote > 0;
            if read + wrote == 0 {
                break;
            }
            // What follows belongs to the session.
            if side == 1 && result != Step::More {
                break;
            }
        }
        let ended = match side {
            0 => connection.up.ended(now),
            _ => connection.down.ended(now),
        };
        if result == Step::More && ended {
            result = Step::Refused(Refused::NotOurs);
        }
        match result {
            Step::More => {}
            Step::Done(Proven {
                channel,
                peer,
                session,
            }) => {
                connection.shaking[side] = false;
                if connection.shaking == [false, false] {
                    connection.bring = Bring::Over;
                }
                node.group.get_or_insert(session);
                node.session.attach(local, peer, channel);
                moved = true;
            }
            Step::Refused(refused) => {
                connection.shaking[side] = false;
                match side {
                    // A stranger's connection is closed and forgotten.
                    0 => connection.down.close(now),
                    _ => {
                        connection.up.close(now);
                        node.session.abort(local, &refused.to_string());
                    }
                }
                moved = true;
            }
        }
        moved
    }
}

fn write_gate(now: u64, node: &mut Node, peer: u32, pipe: &mut Pipe) -> bool {
    let mut moved = false;
    loop {
        let (head, body) = node.session.gate_to_write(peer);
        let body = node.actor.out.get(body).unwrap_or_default();
        let whole = [head, body].concat();
        let count = pipe.write(now, &whole);
        if count == 0 {
            return moved;
        }
        node.session.gate_wrote(peer, count);
        moved = true;
    }
}

fn read_gate(now: u64, local: Time, node: &mut Node, peer: u32, pipe: &mut Pipe) -> bool {
    let mut moved = false;
    loop {
        let incoming = &mut node.actor.incoming[peer as usize];
        let (head, body) = node.session.gate_to_read(peer);
        let count = if head.is_empty() {
            let place = incoming.get_mut(body).unwrap_or_default();
            pipe.read(now, place)
        } else {
            pipe.read(now, head)
        };
        if count == 0 {
            return moved;
        }
        moved = true;
        if node
            .session
            .gate_read(local, peer, count, incoming)
            .is_err()
        {
            return true;
        }
    }
}

fn write_ring(now: u64, node: &mut Node, peer: u32, pipe: &mut Pipe) -> bool {
    let mut moved = false;
    loop {
        let Some((next, head, body)) = node.session.ring_to_write(&node.actor.out) else {
            return moved;
        };
        let count = if next == peer {
            pipe.write(now, &[head, body].concat())
        } else {
            0
        };
        if count == 0 {
            return moved;
        }
        node.session.ring_wrote(count, &node.actor.out);
        moved = true;
    }
}

fn read_ring(now: u64, local: Time, node: &mut Node, peer: u32, pipe: &mut Pipe) -> bool {
    let mut moved = false;
    loop {
        let vector = &mut node.actor.out;
        let Some((before, head, body)) = node.session.ring_to_read(vector) else {
            return moved;
        };
        let room = if head.is_empty() { body } else { head };
        let count = if before == peer {
            pipe.read(now, room)
        } else {
            0
        };
        if count == 0 {
            return moved;
        }
        moved = true;
        if node.session.ring_read(local, count, vector).is_err() {
            return true;
        }
    }
}
