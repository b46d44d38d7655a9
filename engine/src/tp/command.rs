//! Commands of the leader and answers of a worker, as the bytes behind a header.
//!
//! Both protocols use these bytes. The native one refuses reserved fields that are not zero; the
//! reference ignores them, so its peers may set them.

use super::coding::{Reader, UnexpectedEnd};
use super::frame::Kind;

/// A session's number; never 0 in a session that exists.
pub type SessionNumber = u64;

/// One token for one session of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The session.
    pub session: SessionNumber,
    /// Its token.
    pub token: i32,
}

/// A list of tokens: the caller's, or as it lies in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a>(List<'a, i32>);

/// A list of items: the caller's, or as it lies in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a>(List<'a, Item>);

#[derive(Clone, Copy, Debug)]
enum List<'a, T> {
    Values(&'a [T]),
    Wire(&'a [u8]),
}

const ITEM_BYTES: usize = 16;

impl<'a> Tokens<'a> {
    /// The caller's tokens.
    #[must_use]
    pub const fn new(tokens: &'a [i32]) -> Self {
        Self(List::Values(tokens))
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            List::Values(values) => values.len(),
            List::Wire(bytes) => bytes.len() / 4,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens, in order.
    pub fn iter(&self) -> impl Iterator<Item = i32> + 'a {
        let (values, wire): (&[i32], &[u8]) = match self.0 {
            List::Values(values) => (values, &[]),
            List::Wire(bytes) => (&[], bytes),
        };
        let (words, _) = wire.as_chunks::<4>();
        let wire = words.iter().map(|word| i32::from_le_bytes(*word));
        values.iter().copied().chain(wire)
    }
}

impl PartialEq for Tokens<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Tokens<'_> {}

impl<'a> Items<'a> {
    /// The caller's items.
    #[must_use]
    pub const fn new(items: &'a [Item]) -> Self {
        Self(List::Values(items))
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            List::Values(values) => values.len(),
            List::Wire(bytes) => bytes.len() / ITEM_BYTES,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items, in order.
    pub fn iter(&self) -> impl Iterator<Item = Item> + 'a {
        let (values, wire): (&[Item], &[u8]) = match self.0 {
            List::Values(values) => (values, &[]),
            List::Wire(bytes) => (&[], bytes),
        };
        let (records, _) = wire.as_chunks::<ITEM_BYTES>();
        let wire = records.iter().filter_map(|record| {
            let mut reader = Reader::new(record);
            Some(Item {
                session: reader.u64().ok()?,
                token: reader.i32().ok()?,
            })
        });
        values.iter().copied().chain(wire)
    }
}

impl PartialEq for Items<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Items<'_> {}

/// What the leader asks, and what a worker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The session holds these tokens and no others; the worker runs the prompt.
    Sync {
        /// The session.
        session: SessionNumber,
        /// All its tokens.
        tokens: Tokens<'a>,
    },
    /// One token more.
    Eval {
        /// The session.
        session: SessionNumber,
        /// The leader's count of these.
        seq: u64,
        /// The token.
        token: i32,
    },
    /// Back to a position.
    Rewind {
        /// The session.
        session: SessionNumber,
        /// How many tokens stay.
        position: i32,
    },
    /// The session's state is worthless until the next prompt.
    Invalidate {
        /// The session.
        session: SessionNumber,
    },
    /// The end.
    Stop,
    /// A hash of the sender's state.
    Hash {
        /// When it was taken.
        seq: u64,
        /// The hash.
        hash: u64,
    },
    /// The worker's share of the logits, as 32-bit floats.
    Logits(&'a [u8]),
    /// Drafts to judge in one batch.
    Verify {
        /// The session.
        session: SessionNumber,
        /// The drafts.
        drafts: Tokens<'a>,
    },
    /// Which drafts stay.
    VerifyCommit {
        /// All of them.
        full: bool,
        /// Else how many are run again, one by one.
        replay: i32,
    },
    /// A new session.
    SessionCreate {
        /// Its number, fresh.
        session: SessionNumber,
        /// How many tokens it can hold.
        context: i32,
    },
    /// A session's end.
    SessionDestroy {
        /// The session.
        session: SessionNumber,
    },
    /// One token of each of several sessions.
    EvalBatch {
        /// Sessions and tokens.
        items: Items<'a>,
    },
    /// A prompt, and one token of each of several sessions.
    MixedBatch {
        /// The session of the prompt.
        session: SessionNumber,
        /// The prompt.
        prompt: Tokens<'a>,
        /// Sessions and tokens.
        items: Items<'a>,
    },
    /// What came of a command; 0 is good.
    Ack {
        /// The session that the command named, or 0.
        session: SessionNumber,
        /// 0, or what went wrong.
        status: i32,
    },
    /// The answer to a STOP.
    StopAck,
}

/// Why a payload is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage(pub Kind);

/// Whether reserved fields must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// They must: what is no field yet must not be used as one.
    Zero,
    /// They are ignored, as the reference does.
    Ignored,
}

impl<'a> Message<'a> {
    /// The kind of its frame.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Sync { .. } => Kind::Sync,
            Self::Eval { .. } => Kind::Eval,
            Self::Rewind { .. } => Kind::Rewind,
            Self::Invalidate { .. } => Kind::Invalidate,
            Self::Stop => Kind::Stop,
            Self::Hash { .. } => Kind::Hash,
            Self::Logits(_) => Kind::Logits,
            Self::Verify { .. } => Kind::Verify,
            Self::VerifyCommit { .. } => Kind::VerifyCommit,
            Self::SessionCreate { .. } => Kind::SessionCreate,
            Self::SessionDestroy { .. } => Kind::SessionDestroy,
            Self::EvalBatch { .. } => Kind::EvalBatch,
            Self::MixedBatch { .. } => Kind::MixedBatch,
            Self::Ack { .. } => Kind::Ack,
            Self::StopAck => Kind::StopAck,
        }
    }

    /// Appends its bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Sync { session, tokens }
            | Self::Verify {
                session,
                drafts: tokens,
            } => {
                put64(out, session);
                put_count(out, tokens.len());
                put32(out, 0);
                put_tokens(out, tokens);
            }
            Self::Eval {
                session,
                seq,
                token,
            } => {
                put64(out, session);
                put64(out, seq);
                put_signed(out, token);
                put32(out, 0);
            }
            Self::Rewind {
                session,
                position: number,
            }
            | Self::SessionCreate {
                session,
                context: number,
            }
            | Self::Ack {
                session,
                status: number,
            } => {
                put64(out, session);
                put_signed(out, number);
                put32(out, 0);
            }
            Self::Invalidate { session } | Self::SessionDestroy { session } => put64(out, session),
            Self::Stop | Self::StopAck => {}
            Self::Hash { seq, hash } => {
                put64(out, seq);
                put64(out, hash);
            }
            Self::Logits(share) => out.extend_from_slice(share),
            Self::VerifyCommit { full, replay } => {
                put_signed(out, i32::from(full));
                put_signed(out, replay);
            }
            Self::EvalBatch { items } => {
                put_count(out, items.len());
                put32(out, 0);
                put_items(out, items);
            }
            Self::MixedBatch {
                session,
                prompt,
                items,
            } => {
                put64(out, session);
                put_count(out, prompt.len());
                put_count(out, items.len());
                put_tokens(out, prompt);
                put_items(out, items);
            }
        }
    }

    /// Reads the payload of a frame; what it names lies in `payload` still.
    ///
    /// # Errors
    /// [`BadMessage`]: a length or count does not match, a reserved field is set, or frames of
    /// this kind carry no message.
    pub fn decode(kind: Kind, payload: &'a [u8], reserved: Reserved) -> Result<Self, BadMessage> {
        Self::parse(kind, payload, reserved)
            .ok()
            .flatten()
            .ok_or(BadMessage(kind))
    }

    fn parse(
        kind: Kind,
        payload: &'a [u8],
        reserved: Reserved,
    ) -> Result<Option<Self>, UnexpectedEnd> {
        let mut reader = Reader::new(payload);
        let spare = |value: u32| value == 0 || reserved == Reserved::Ignored;
        let message = match kind {
            Kind::Sync | Kind::Verify => {
                let (session, count, zero) = (reader.u64()?, reader.u32()?, reader.u32()?);
                let tokens = Tokens(List::Wire(take(&mut reader, count, 4)?));
                let message = if kind == Kind::Sync {
                    Self::Sync { session, tokens }
                } else {
                    Self::Verify {
                        session,
                        drafts: tokens,
                    }
                };
                spare(zero).then_some(message)
            }
            Kind::Eval => {
                let (session, seq, token) = (reader.u64()?, reader.u64()?, reader.i32()?);
                spare(reader.u32()?).then_some(Self::Eval {
                    session,
                    seq,
                    token,
                })
            }
            Kind::Rewind | Kind::SessionCreate | Kind::Ack => {
                let (session, number, zero) = (reader.u64()?, reader.i32()?, reader.u32()?);
                let message = if kind == Kind::Rewind {
                    Self::Rewind {
                        session,
                        position: number,
                    }
                } else if kind == Kind::SessionCreate {
                    Self::SessionCreate {
                        session,
                        context: number,
                    }
                } else {
                    Self::Ack {
                        session,
                        status: number,
                    }
                };
                spare(zero).then_some(message)
            }
            Kind::Invalidate => Some(Self::Invalidate {
                session: reader.u64()?,
            }),
            Kind::SessionDestroy => Some(Self::SessionDestroy {
                session: reader.u64()?,
            }),
            Kind::Stop => Some(Self::Stop),
            Kind::StopAck => Some(Self::StopAck),
            Kind::Hash => Some(Self::Hash {
                seq: reader.u64()?,
                hash: reader.u64()?,
            }),
            Kind::Logits => {
                let share = reader.slice(payload.len())?;
                share.len().is_multiple_of(4).then_some(Self::Logits(share))
            }
            Kind::VerifyCommit => {
                let (full, replay) = (reader.i32()?, reader.i32()?);
                let sane = matches!((full, replay), (1, 0) | (0, 0..));
                sane.then_some(Self::VerifyCommit {
                    full: full == 1,
                    replay,
                })
            }
            Kind::EvalBatch => {
                let (count, zero) = (reader.u32()?, reader.u32()?);
                let items = take_items(&mut reader, count, reserved)?;
                items
                    .filter(|_| spare(zero))
                    .map(|items| Self::EvalBatch { items })
            }
            Kind::MixedBatch => {
                let (session, prompt, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
                let prompt = Tokens(List::Wire(take(&mut reader, prompt, 4)?));
                let items = take_items(&mut reader, count, reserved)?;
                items
                    .filter(|_| !prompt.is_empty())
                    .map(|items| Self::MixedBatch {
                        session,
                        prompt,
                        items,
                    })
            }
            Kind::Hello
            | Kind::Vote
            | Kind::Chosen
            | Kind::Error
            | Kind::Ping
            | Kind::Verbs
            | Kind::Collective
            | Kind::Roster
            | Kind::RowGate
            | Kind::BatchGate
            | Kind::BigGate => None,
        };
        Ok(message.filter(|_| reader.rest().is_empty()))
    }
}

fn take<'a>(
    reader: &mut Reader<'a>,
    count: u32,
    bytes_each: usize,
) -> Result<&'a [u8], UnexpectedEnd> {
    let count = usize::try_from(count).map_err(|_| UnexpectedEnd)?;
    reader.slice(count.checked_mul(bytes_each).ok_or(UnexpectedEnd)?)
}

/// At least one item; none when there is none or a reserved field is set.
fn take_items<'a>(
    reader: &mut Reader<'a>,
    count: u32,
    reserved: Reserved,
) -> Result<Option<Items<'a>>, UnexpectedEnd> {
    let wire = take(reader, count, ITEM_BYTES)?;
    let (records, _) = wire.as_chunks::<ITEM_BYTES>();
    let clean = |[.., a, b, c, d]: &[u8; ITEM_BYTES]| [*a, *b, *c, *d] == [0; 4];
    let allowed = reserved == Reserved::Ignored || records.iter().all(clean);
    Ok((allowed && !records.is_empty()).then_some(Items(List::Wire(wire))))
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_signed(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Counts beyond 32 bits do not fit a frame, which its length refuses.
fn put_count(out: &mut Vec<u8>, count: usize) {
    put32(out, u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_tokens(out: &mut Vec<u8>, tokens: Tokens<'_>) {
    tokens.iter().for_each(|token| put_signed(out, token));
}

fn put_items(out: &mut Vec<u8>, items: Items<'_>) {
    for item in items.iter() {
        put64(out, item.session);
        put_signed(out, item.token);
        put32(out, 0);
    }
}
