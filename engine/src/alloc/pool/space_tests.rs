//! Spaces, regions and pages of a pool against a model that keeps every unit by itself.

use proptest::prelude::*;

use super::*;

const SHIFT: u32 = 4;

/// What a unit is, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Live,
    Pending,
    FreeIn(u32),
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { units: u32, from: usize, long: bool },
    Free { which: usize, to: usize },
    Defer { which: usize },
    Settle { which: usize, to: usize },
    Move { from: usize },
    MoveTouched { to: usize },
    Extend { units: u32, wall: bool },
    Retract { units: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1_u32..80, 0_usize..3, prop::bool::weighted(0.2))
            .prop_map(|(units, from, long)| Step::Allocate { units, from, long }),
        6 => (any::<usize>(), 0_usize..3).prop_map(|(which, to)| Step::Free { which, to }),
        1 => any::<usize>().prop_map(|which| Step::Defer { which }),
        1 => (any::<usize>(), 0_usize..3).prop_map(|(which, to)| Step::Settle { which, to }),
        1 => (1_usize..3).prop_map(|from| Step::Move { from }),
        1 => (1_usize..3).prop_map(|to| Step::MoveTouched { to }),
        1 => (1_u32..120, any::<bool>()).prop_map(|(units, wall)| Step::Extend { units, wall }),
        1 => (1_u32..150).prop_map(|units| Step::Retract { units }),
    ];
    prop::collection::vec(step, 1..80)
}

struct Model {
    pool: Pool,
    spaces: [u32; 3],
    units: Vec<Unit>,
    touched: Vec<bool>,
    /// Where regions behind a wall begin.
    walls: Vec<usize>,
    /// Whether a block or a wall ever split what nobody touched; a retraction may hide that.
    split: bool,
    live: Vec<(BlockId, u32, u32)>,
    pending: Vec<(u32, u32, u32)>,
}

impl Model {
    fn new() -> Self {
        let mut pool = Pool::new(Some(PageLimit {
            shift: SHIFT,
            pages: u32::MAX,
        }));
        pool.extend(200, false);
        let spaces = [OPEN, pool.add_space().unwrap(), pool.add_space().unwrap()];
        Self {
            pool,
            spaces,
            units: vec![Unit::FreeIn(OPEN); 200],
            touched: vec![false; 200],
            walls: Vec::new(),
            split: false,
            live: Vec::new(),
            pending: Vec::new(),
        }
    }

    fn set(&mut self, offset: u32, units: u32, unit: Unit) {
        self.units[offset as usize..(offset + units) as usize].fill(unit);
    }

    fn is_free(&self, range: std::ops::Range<usize>, space: u32) -> bool {
        let walled = self
            .walls
            .iter()
            .any(|wall| range.start < *wall && *wall < range.end);
        !walled
            && self.units[range]
                .iter()
                .all(|unit| *unit == Unit::FreeIn(space))
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Allocate { units, from, long } => {
                self.allocate(units, self.spaces[from], long)?;
            }
            Step::Free { which, to } if !self.live.is_empty() => {
                let (id, offset, units) = self.live.swap_remove(which % self.live.len());
                prop_assert!(self.pool.live(id).is_ok());
                self.pool.release(id.node, self.spaces[to]);
                self.set(offset, units, Unit::FreeIn(self.spaces[to]));
                prop_assert_eq!(self.pool.free(id).is_err(), true);
            }
            Step::Defer { which } if !self.live.is_empty() => {
                let (id, offset, units) = self.live.swap_remove(which % self.live.len());
                self.pool.defer(id.node);
                self.set(offset, units, Unit::Pending);
                prop_assert_eq!(self.pool.live(id), Err(NotLive::AlreadyFree));
                self.pending.push((id.node, offset, units));
            }
            Step::Settle { which, to } if !self.pending.is_empty() => {
                let (node, offset, units) = self.pending.swap_remove(which % self.pending.len());
                self.pool.release(node, self.spaces[to]);
                self.set(offset, units, Unit::FreeIn(self.spaces[to]));
            }
            Step::Move { from } => {
                self.pool.move_space(self.spaces[from], OPEN);
                let old = Unit::FreeIn(self.spaces[from]);
                self.units
                    .iter_mut()
                    .filter(|unit| **unit == old)
                    .for_each(|unit| {
                        *unit = Unit::FreeIn(OPEN);
                    });
            }
            Step::MoveTouched { to } => self.move_touched(self.spaces[to])?,
            Step::Extend { units, wall } => {
                let offset = self.units.len();
                prop_assert_eq!(self.pool.extend(units, wall), u32::try_from(offset).ok());
                if wall && offset > 0 {
                    self.walls.push(offset);
                    self.split = true;
                }
                self.units
                    .resize(offset + units as usize, Unit::FreeIn(OPEN));
                self.touched.resize(offset + units as usize, false);
            }
            Step::Retract { units } => self.retract(units)?,
            Step::Free { .. } | Step::Defer { .. } | Step::Settle { .. } => {}
        }
        self.compare()
    }

    fn allocate(&mut self, units: u32, space: u32, long: bool) -> Result<(), TestCaseError> {
        let lifetime = if long {
            Lifetime::Long
        } else {
            Lifetime::Transient
        };
        let want = Want {
            lifetime,
            ..Want::units(units)
        };
        let length = units as usize;
        let last = self.units.len().saturating_sub(length);
        let room = length <= self.units.len()
            && (0..=last).any(|start| self.is_free(start..start + length, space));
        let Some(fit) = self.pool.find(space, want) else {
            prop_assert!(!room, "{units} units of space {space} were not found");
            return Ok(());
        };
        let start = fit.offset as usize;
        prop_assert!(self.is_free(start..start + length, space), "{fit:?}");
        let id = self.pool.take(fit, 0, 0);
        self.set(fit.offset, units, Unit::Live);
        self.touched[start..start + length].fill(true);
        self.split = true;
        self.live.push((id, fit.offset, units));
        Ok(())
    }

    fn move_touched(&mut self, to: u32) -> Result<(), TestCaseError> {
        let (start, end) = self.pool.virgin;
        self.pool.move_touched(to);
        for (at, unit) in self.units.iter_mut().enumerate() {
            let kept = (start as usize..end as usize).contains(&at);
            if *unit == Unit::FreeIn(OPEN) && !kept {
                *unit = Unit::FreeIn(to);
            }
        }
        prop_assert_eq!(self.pool.virgin, (start, end));
        Ok(())
    }

    fn retract(&mut self, units: u32) -> Result<(), TestCaseError> {
        let Some(start) = self.units.len().checked_sub(units as usize) else {
            prop_assert!(!self.pool.retract(units));
            return Ok(());
        };
        let free = self.is_free(start..self.units.len(), OPEN);
        prop_assert_eq!(self.pool.can_retract(units), free);
        prop_assert_eq!(self.pool.retract(units), free);
        if free {
            self.units.truncate(start);
            self.touched.truncate(start);
            self.walls.retain(|wall| *wall < start);
        }
        Ok(())
    }

    fn free_regions_at_end(&self) -> usize {
        let mut count = 0;
        let mut end = self.units.len();
        for start in self.walls.iter().rev().copied().chain([0]) {
            if start == end || !self.is_free(start..end, OPEN) {
                break;
            }
            (count, end) = (count + 1, start);
        }
        count
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.pool.check(), Ok(()));
        prop_assert_eq!(self.pool.units() as usize, self.units.len());
        let page = 1 << SHIFT;
        let free = |start: usize| {
            self.spaces
                .iter()
                .any(|s| self.is_free(start..start + page, *s))
        };
        let pages = self.units.len() / page;
        let occupied = (0..pages).filter(|number| !free(number * page)).count();
        prop_assert_eq!(self.pool.occupied_pages() as usize, occupied);
        for space in self.spaces {
            let empty = !self.units.contains(&Unit::FreeIn(space));
            prop_assert_eq!(self.pool.space_is_empty(space), empty, "space {}", space);
        }
        prop_assert_eq!(self.pool.free_regions_at_end(), self.free_regions_at_end());
        prop_assert!(!self.pool.can_retract(0));
        let (start, end) = self.pool.virgin;
        prop_assert!(!self.touched[start as usize..end as usize].contains(&true));
        prop_assert!(start == end || self.is_free(start as usize..end as usize, OPEN));
        // The largest stretch is kept while nothing splits it.
        prop_assert!(self.split || (start, end as usize) == (0, self.units.len()));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn spaces_regions_and_pages_agree_with_a_model_of_every_unit(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step)?;
        }
        for (id, ..) in std::mem::take(&mut model.live) {
            prop_assert_eq!(model.pool.free(id), Ok(()));
        }
        for (node, ..) in std::mem::take(&mut model.pending) {
            model.pool.release(node, OPEN);
        }
        for space in [1, 2] {
            model.pool.move_space(model.spaces[space], OPEN);
        }
        model.units.fill(Unit::FreeIn(OPEN));
        model.compare()?;
    }
}

#[test]
fn a_wall_that_is_not_used_or_is_gone_fails_the_check() {
    let mut pool = Pool::new(None);
    pool.extend(100, false);
    pool.extend(100, true);
    assert_eq!(pool.check(), Ok(()));
    let wall = pool.node(pool.last).prev;
    let mut pending = pool.clone();
    pending.defer(wall);
    assert!(
        pending
            .check()
            .unwrap_err()
            .contains("no units at unit 100")
    );
    // Free neighbours merge over it.
    let mut freed = pool.clone();
    freed.release(wall, OPEN);
    assert_eq!(freed.largest_free(), 200);
    assert!(
        freed
            .check()
            .unwrap_err()
            .contains("the wall at unit 100 is gone")
    );
    // A live block on either side keeps it visible.
    let mut between = pool.clone();
    assert!(between.allocate(Want::units(100)).is_some());
    assert!(between.allocate(Want::units(100)).is_some());
    between.release(wall, OPEN);
    assert!(
        between
            .check()
            .unwrap_err()
            .contains("no units at unit 100")
    );
}

#[test]
fn a_wall_with_nothing_behind_it_fails_the_check() {
    let mut pool = Pool::new(None);
    pool.extend(100, false);
    pool.append(100, 0, State::Used);
    pool.walls.push(100);
    assert!(pool.check().unwrap_err().contains("no units at unit 100"));
}

#[test]
fn a_region_behind_a_wall_is_kept_as_untouched_only_if_it_is_larger() {
    let mut pool = Pool::new(None);
    let regions = [
        (100, (0, 100)),
        (50, (0, 100)),
        (200, (150, 350)),
        (200, (150, 350)),
        (300, (550, 850)),
    ];
    for (units, kept) in regions {
        pool.extend(units, true);
        assert_eq!(pool.virgin, kept);
    }
}

#[test]
fn touching_an_end_of_what_nobody_touched_keeps_the_larger_part() {
    let mut pool = Pool::new(None);
    pool.extend(100, false);
    for (start, end, left) in [(0, 10, (10, 100)), (90, 95, (10, 90)), (40, 70, (10, 40))] {
        pool.touch_virgin(start, end);
        assert_eq!(pool.virgin, left);
    }
    pool.touch_virgin(10, 40);
    assert_eq!(pool.virgin.0, pool.virgin.1);
}

#[test]
fn counters_count_each_search_cut_and_join_once() {
    let mut pool = Pool::new(None);
    pool.extend(100, false);
    let (first, _) = pool.allocate(Want::units(10)).unwrap();
    let (second, _) = pool.allocate(Want::units(10)).unwrap();
    assert_eq!(
        pool.counters(),
        PoolCounters {
            probes: 2,
            splits: 2,
            merges: 0
        }
    );
    // The first block is the last in memory, the second lies between it and the rest.
    pool.free(first).unwrap();
    assert_eq!(pool.counters().merges, 0);
    pool.free(second).unwrap();
    assert_eq!(pool.counters().merges, 2);
}
