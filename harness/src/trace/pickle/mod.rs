//! A pickle machine for plain data.
//!
//! General pickle readers build a tree, so a shared list costs its size at each use and nesting
//! costs stack. Here containers live in an arena and values refer to them: memory is bounded by
//! [`ReadLimits::max_pickle_items`], sharing and nesting are free, and nothing recurses.
//!
//! Only what a snapshot gives meaning to is kept: strings that are its words, and entries of
//! dicts under such words. A container that follows another string is the value of an entry that
//! will not be kept, so it stays empty; most of a large snapshot is call stacks, which are such.
//! Opcodes that name or call code are refused before anything is made of them.

mod input;

use std::io::{self, Read};

use input::Input;

use super::error::{Position, Site};
use super::{ReadLimits, TraceError};

/// A string that a memory snapshot gives meaning to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Action,
    ActiveAllocated,
    ActivePendingFree,
    Addr,
    Address,
    Alloc,
    Blocks,
    Device,
    DeviceTraces,
    FreeCompleted,
    FreeRequested,
    Oom,
    RequestedSize,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Segments,
    Size,
    State,
    Stream,
    TimeUs,
}

impl Word {
    const LONGEST_BYTES: usize = 32;

    const NAMES: [(&'static str, Self); 23] = [
        ("action", Self::Action),
        ("active_allocated", Self::ActiveAllocated),
        ("active_pending_free", Self::ActivePendingFree),
        ("active_awaiting_free", Self::ActivePendingFree),
        ("addr", Self::Addr),
        ("address", Self::Address),
        ("alloc", Self::Alloc),
        ("blocks", Self::Blocks),
        ("device", Self::Device),
        ("device_traces", Self::DeviceTraces),
        ("free_completed", Self::FreeCompleted),
        ("free_requested", Self::FreeRequested),
        ("oom", Self::Oom),
        ("requested_size", Self::RequestedSize),
        ("segment_alloc", Self::SegmentAlloc),
        ("segment_free", Self::SegmentFree),
        ("segment_map", Self::SegmentMap),
        ("segment_unmap", Self::SegmentUnmap),
        ("segments", Self::Segments),
        ("size", Self::Size),
        ("state", Self::State),
        ("stream", Self::Stream),
        ("time_us", Self::TimeUs),
    ];

    fn find(text: &[u8]) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(name, _)| name.as_bytes() == text)
            .map(|(_, word)| *word)
    }

    /// The string itself.
    pub(super) fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, word)| *word == self)
            .map_or("", |(name, _)| name)
    }
}

/// A value of a pickle, as far as a snapshot needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// An integer; `None` if it does not fit.
    Int(Option<i64>),
    Word(Word),
    /// A list or dict, in the arena.
    Node(usize),
    /// A string that is no word.
    Text,
    /// Anything else: tuples, sets, floats, `None`, booleans, containers that are not kept.
    Other,
}

#[derive(Debug)]
enum Node {
    List(Vec<Value>),
    /// Keys and values in turn, in order of insertion.
    Dict(Vec<Value>),
}

/// The containers of a loaded pickle.
#[derive(Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<Node>,
}

impl Arena {
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Node(index) => match self.nodes.get(index) {
                Some(Node::List(items)) => Some(items),
                Some(Node::Dict(_)) | None => None,
            },
            Value::Int(_) | Value::Word(_) | Value::Text | Value::Other => None,
        }
    }

    /// Keys and values in turn.
    pub(super) fn dict(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Node(index) => match self.nodes.get(index) {
                Some(Node::Dict(items)) => Some(items),
                Some(Node::List(_)) | None => None,
            },
            Value::Int(_) | Value::Word(_) | Value::Text | Value::Other => None,
        }
    }
}

/// Loads one pickle; returns its containers and the value on top at the end.
pub(super) fn load(
    reader: impl Read,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<(Arena, Value), TraceError> {
    let mut machine = Machine {
        input: Input::new(reader),
        arena: Arena::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        items_left: limits.max_pickle_items,
    };
    loop {
        let at = machine.input.offset();
        match machine.step() {
            Ok(None) => {}
            Ok(Some(root)) => {
                // Reading on to the end also proves the checksum of a gzip stream.
                return match machine.input.end() {
                    Ok(()) => Ok((machine.arena, root)),
                    Err(fault) => Err(fault.into_error(site, Position::Byte(at), limits)),
                };
            }
            Err(fault) => return Err(fault.into_error(site, Position::Byte(at), limits)),
        }
    }
}

/// Why the machine stopped.
enum Fault {
    Io(io::Error),
    CutShort,
    Code,
    Unsupported(u8),
    Damaged(&'static str),
    TooManyItems,
}

impl Fault {
    fn into_error(self, site: Site<'_>, at: Position, limits: &ReadLimits) -> TraceError {
        const AGAIN: &str = "dump the snapshot again with torch.cuda.memory._dump_snapshot";
        match self {
            Self::Io(error) => site.io(error),
            Self::CutShort => site.format(at, "the pickle is cut short", AGAIN),
            Self::Code => site.format(
                at,
                "the pickle asks to load or call code, which a snapshot never does and which is \
                 never run here",
                AGAIN,
            ),
            Self::Unsupported(opcode) => site.format(
                at,
                format!("opcode {opcode:#04x} is not one of a snapshot"),
                AGAIN,
            ),
            Self::Damaged(problem) => site.format(at, problem, AGAIN),
            Self::TooManyItems => site.limit(
                at,
                format!(
                    "the pickle holds more than {} values",
                    limits.max_pickle_items
                ),
            ),
        }
    }
}

const UNDERFLOW: Fault = Fault::Damaged("the pickle takes a value that it never put");

struct Machine<R> {
    input: Input<R>,
    arena: Arena,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
    items_left: usize,
}

impl<R: Read> Machine<R> {
    /// Runs one opcode; yields the root at the end.
    fn step(&mut self) -> Result<Option<Value>, Fault> {
        match self.input.byte()? {
            b'.' => return self.pop().map(Some),
            0x80 => self.input.skip(1)?,
            0x95 => self.input.skip(8)?,
            b'(' => self.mark()?,
            b'0' => self.discard()?,
            b'1' => self.truncate_to_mark()?,
            b'2' => {
                let top = self.stack.last().copied().ok_or(UNDERFLOW)?;
                self.push(top)?;
            }
            opcode @ (b'h' | b'j' | b'q' | b'r' | 0x94) => self.step_memo(opcode)?,
            opcode @ (b'J' | b'K' | b'M' | 0x8a | 0x8b) => self.step_integer(opcode)?,
            b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
            b'G' => {
                self.input.skip(8)?;
                self.push(Value::Other)?;
            }
            opcode @ (b'U' | b'T' | b'X' | b'C' | b'B' | 0x8c | 0x8d | 0x8e | 0x96) => {
                self.step_text(opcode)?;
            }
            opcode => self.step_container(opcode)?,
        }
        Ok(None)
    }

    fn step_memo(&mut self, opcode: u8) -> Result<(), Fault> {
        let index = match opcode {
            b'h' | b'q' => usize::from(self.input.byte()?),
            0x94 => self.memo.len(),
            _ => usize::try_from(u32::from_le_bytes(self.input.array()?)).unwrap_or(usize::MAX),
        };
        if matches!(opcode, b'h' | b'j') {
            let known = self.memo.get(index).copied();
            return self.push(known.ok_or(Fault::Damaged("the pickle recalls an unknown value"))?);
        }
        let top = self.stack.last().copied().ok_or(UNDERFLOW)?;
        if index >= self.memo.len() {
            self.charge(index - self.memo.len() + 1)?;
            self.memo.resize(index + 1, Value::Other);
        }
        if let Some(slot) = self.memo.get_mut(index) {
            *slot = top;
        }
        Ok(())
    }

    fn step_integer(&mut self, opcode: u8) -> Result<(), Fault> {
        let number = match opcode {
            b'J' => Some(i64::from(i32::from_le_bytes(self.input.array()?))),
            b'K' => Some(i64::from(self.input.byte()?)),
            b'M' => Some(i64::from(u16::from_le_bytes(self.input.array()?))),
            0x8a => {
                let length = u64::from(self.input.byte()?);
                self.input.long(length)?
            }
            _ => {
                let length = i32::from_le_bytes(self.input.array()?);
                self.input.long(positive(length)?)?
            }
        };
        self.push(Value::Int(number))
    }

    fn step_text(&mut self, opcode: u8) -> Result<(), Fault> {
        let length = match opcode {
            b'U' | b'C' | 0x8c => u64::from(self.input.byte()?),
            b'T' => positive(i32::from_le_bytes(self.input.array()?))?,
            b'X' | b'B' => u64::from(u32::from_le_bytes(self.input.array()?)),
            _ => u64::from_le_bytes(self.input.array()?),
        };
        let word = self.input.word(length)?;
        self.push(word.map_or(Value::Text, Value::Word))
    }

    fn step_container(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            b']' | b'}' if self.stack.last() == Some(&Value::Text) => self.push(Value::Other),
            b']' => self.push_node(Node::List(Vec::new())),
            b'}' => self.push_node(Node::Dict(Vec::new())),
            b'l' | b'd' => {
                let start = self.marks.pop().ok_or(UNDERFLOW)?;
                let items = self.stack.split_off(start.min(self.stack.len()));
                let (list, dict) = (Node::List(Vec::new()), Node::Dict(Vec::new()));
                self.push_node(if opcode == b'l' { list } else { dict })?;
                let count = items.len();
                self.stack.extend(items);
                self.extend(count, opcode == b'd')
            }
            b'a' => self.extend(1, false),
            b's' => self.extend(2, true),
            b'e' | b'u' => {
                let start = self.marks.pop().ok_or(UNDERFLOW)?;
                let count = self.stack.len().saturating_sub(start);
                self.extend(count, opcode == b'u')
            }
            b')' | 0x8f => self.push(Value::Other),
            0x85..=0x87 => {
                for _ in 0x84..opcode {
                    self.pop()?;
                }
                self.push(Value::Other)
            }
            b't' | 0x91 => {
                self.truncate_to_mark()?;
                self.push(Value::Other)
            }
            0x90 => self.truncate_to_mark(),
            b'c' | b'i' | b'o' | b'b' | b'R' | b'P' | b'Q' | 0x81..=0x84 | 0x92 | 0x93 => {
                Err(Fault::Code)
            }
            _ => Err(Fault::Unsupported(opcode)),
        }
    }

    /// Moves the top `count` values into the container below them.
    fn extend(&mut self, count: usize, into_dict: bool) -> Result<(), Fault> {
        let target = self.stack.len().checked_sub(count + 1).ok_or(UNDERFLOW)?;
        if self.marks.last().is_some_and(|mark| target < *mark) {
            return Err(UNDERFLOW);
        }
        if into_dict && count % 2 == 1 {
            return Err(ODD_DICT);
        }
        let index = match self.stack.get(target) {
            Some(Value::Node(index)) => *index,
            Some(Value::Other) => {
                self.stack.truncate(target + 1);
                return Ok(());
            }
            Some(Value::Int(_) | Value::Word(_) | Value::Text) | None => return Err(NO_CONTAINER),
        };
        let items = self.stack.get(target + 1..).unwrap_or_default();
        let added = match (self.arena.nodes.get_mut(index), into_dict) {
            (Some(Node::List(held)), false) => {
                held.extend_from_slice(items);
                items.len()
            }
            (Some(Node::Dict(held)), true) => {
                let before = held.len();
                let pairs = items.chunks_exact(2);
                let kept = pairs.filter(|pair| matches!(pair.first(), Some(Value::Word(_))));
                held.extend(kept.flatten());
                held.len() - before
            }
            (Some(_) | None, _) => return Err(NO_CONTAINER),
        };
        self.stack.truncate(target + 1);
        self.charge(added)
    }

    /// Values on the stack count only while they are there.
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.stack.len() + self.marks.len() >= self.items_left {
            return Err(Fault::TooManyItems);
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<(), Fault> {
        self.charge(2)?;
        let index = self.arena.nodes.len();
        self.arena.nodes.push(node);
        self.push(Value::Node(index))
    }

    fn charge(&mut self, items: usize) -> Result<(), Fault> {
        self.items_left = self
            .items_left
            .checked_sub(items)
            .ok_or(Fault::TooManyItems)?;
        Ok(())
    }

    fn mark(&mut self) -> Result<(), Fault> {
        if self.stack.len() + self.marks.len() >= self.items_left {
            return Err(Fault::TooManyItems);
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Takes the top value; a value below the last mark is out of reach.
    fn pop(&mut self) -> Result<Value, Fault> {
        if self
            .marks
            .last()
            .is_some_and(|mark| self.stack.len() <= *mark)
        {
            return Err(UNDERFLOW);
        }
        self.stack.pop().ok_or(UNDERFLOW)
    }

    /// The opcode POP takes a mark if one is on top.
    fn discard(&mut self) -> Result<(), Fault> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn truncate_to_mark(&mut self) -> Result<(), Fault> {
        let start = self.marks.pop().ok_or(UNDERFLOW)?;
        self.stack.truncate(start);
        Ok(())
    }
}

const ODD_DICT: Fault = Fault::Damaged("the pickle puts a key without a value into a dict");
const NO_CONTAINER: Fault = Fault::Damaged("the pickle adds to something that is no list or dict");

fn positive(length: i32) -> Result<u64, Fault> {
    u64::try_from(length).map_err(|_| Fault::Damaged("the pickle gives a negative length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(bytes: &[u8]) -> Result<(Arena, Value), String> {
        let limits = ReadLimits {
            max_pickle_items: 1000,
            ..ReadLimits::default()
        };
        load(bytes, Site { file: "t" }, &limits).map_err(|error| error.to_string())
    }

    fn top(bytes: &[u8]) -> Value {
        loaded(bytes).unwrap().1
    }

    #[test]
    fn integers_of_every_width_are_read() {
        assert_eq!(top(b"\x80\x02K\xff."), Value::Int(Some(255)));
        assert_eq!(top(b"\x80\x02M\x00\x01."), Value::Int(Some(256)));
        assert_eq!(top(b"\x80\x02J\xff\xff\xff\xff."), Value::Int(Some(-1)));
        assert_eq!(top(b"\x80\x02\x8a\x00."), Value::Int(Some(0)));
        assert_eq!(top(b"\x80\x02\x8a\x02\x00\x80."), Value::Int(Some(-32768)));
        assert_eq!(
            top(b"\x80\x02\x8a\x09\0\0\0\0\0\0\0\x80\0."),
            Value::Int(None)
        );
        assert_eq!(top(b"\x80\x02\x8b\x01\0\0\0\x07."), Value::Int(Some(7)));
    }

    #[test]
    fn shared_container_is_one_container() {
        // d = {}; [d, d], with the second reached through the memo, then d["size"] = 7.
        let (arena, root) = loaded(b"\x80\x04](}\x94h\x00e.").unwrap();
        let items = arena.list(root).unwrap();
        assert_eq!(items.len(), 2);
        assert_eq!(items.first(), items.last());
        let (arena, root) = loaded(b"\x80\x04}\x94X\x04\0\0\0sizeK\x07s.").unwrap();
        let dict = [Value::Word(Word::Size), Value::Int(Some(7))];
        assert_eq!(arena.dict(root), Some(&dict[..]));
    }

    #[test]
    fn entries_without_meaning_cost_nothing() {
        // {"frames": [1, ...], "size": 7}, a thousand times over.
        let mut bytes = b"\x80\x04".to_vec();
        for _ in 0..1000 {
            bytes.extend(b"}(X\x06\0\0\0frames](");
            bytes.extend(b"K\x01".repeat(100));
            bytes.extend(b"eX\x04\0\0\0sizeK\x07u0");
        }
        bytes.extend(b"].");
        assert!(
            loaded(&bytes)
                .unwrap_err()
                .contains("more than 1000 values"),
            "dicts count"
        );
        let limits = ReadLimits {
            max_pickle_items: 4110,
            ..ReadLimits::default()
        };
        assert!(load(&bytes[..], Site { file: "t" }, &limits).is_ok());
    }

    #[test]
    fn code_is_refused_and_never_run() {
        for bytes in [
            &b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            b"\x80\x02(iposix\nsystem\n.",
            b"\x80\x02)\x81.",
            b"\x80\x02}}b.",
            b"\x80\x02K\x01Q.",
        ] {
            let message = loaded(bytes).unwrap_err();
            assert!(message.contains("code"), "{message}");
        }
    }

    #[test]
    fn bombs_are_refused_or_harmless() {
        let mut deep = b"\x80\x02".to_vec();
        deep.extend(b"]".repeat(100_000));
        assert!(loaded(&deep).unwrap_err().contains("more than 1000 values"));
        let mut marks = b"\x80\x02".to_vec();
        marks.extend(b"(".repeat(100_000));
        assert!(
            loaded(&marks)
                .unwrap_err()
                .contains("more than 1000 values")
        );
        let sparse_memo = b"\x80\x02]r\xff\xff\xff\xff.";
        assert!(
            loaded(sparse_memo)
                .unwrap_err()
                .contains("more than 1000 values")
        );
        // Each list holds the one before twice: 2^60 leaves once expanded.
        let mut doubling = b"\x80\x04]\x94".to_vec();
        for level in 0..60 {
            doubling.extend([b'0', b']', 0x94, b'(', b'h', level, b'h', level, b'e']);
        }
        doubling.push(b'.');
        assert!(loaded(&doubling).is_ok());
        assert!(loaded(b"\x80\x02]2222a2a2a2a.").is_ok());
        for length in [
            &b"X\xff\xff\xff\xff"[..],
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert!(loaded(length).unwrap_err().contains("cut short"));
        }
        assert!(
            loaded(b"T\xff\xff\xff\xff")
                .unwrap_err()
                .contains("negative length")
        );
    }

    #[test]
    fn damaged_stack_is_refused() {
        for bytes in [
            &b"."[..],
            b"0",
            b"1",
            b"2",
            b"e",
            b"u",
            b"t",
            b"l",
            b"a",
            b"]a",
            b"K\x01K\x01a.",
            b"]K\x01K\x01s.",
            b"](K\x01a",
            b"}(K\x01u",
            b"(K\x01d",
            b"h\x00",
            b"](0)\x87",
            b"\xff",
        ] {
            assert!(loaded(bytes).is_err(), "{bytes:?}");
        }
    }
}
