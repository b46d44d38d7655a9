//! Groups of ranks under faults.

use super::plan::{LinkFault, LinkFaultKind, LinkPlan, RankFault, RankFaultKind};
use super::run::{Breach, run_links};
use super::shrink::shrink_links;
use ds4_engine::tp::exchange::SumLimits;
use ds4_engine::tp::session::Phase;
use ds4_engine::tp::trust::Channel;

fn check(plan: &LinkPlan) {
    let report = run_links(plan);
    if let Some(breach) = report.breach() {
        panic!("{breach}\n{plan:#?}\n{report:#?}");
    }
}

#[test]
fn quiet_runs_pass_every_gate_on_two_to_eight_ranks() {
    for ranks in 2..=8 {
        for seed in 0..6 {
            let plan = LinkPlan {
                skewed_clocks: seed % 2 == 0,
                payload_crc: seed % 3 != 0,
                ..LinkPlan::quiet(seed, ranks)
            };
            let report = run_links(&plan);
            assert!(report.complete(), "{plan:?}\n{report:#?}");
            assert!(report.planned_gates >= 12);
            for rank in &report.ranks {
                assert_eq!((rank.phase, &rank.error), (Phase::Closed, &None));
            }
        }
    }
}

#[test]
fn two_thousand_random_runs_end_right_or_in_errors_everywhere() {
    let mut complete = 0;
    let mut failed = 0;
    for seed in 0..2000 {
        let plan = LinkPlan::random(seed);
        let report = run_links(&plan);
        if let Some(breach) = report.breach() {
            panic!("{breach}\n{plan:#?}\n{report:#?}");
        }
        if report.complete() {
            complete += 1;
        } else {
            failed += 1;
        }
    }
    // Both ways to end must have happened, or the campaign proves nothing.
    assert!(
        complete > 400 && failed > 400,
        "{complete} complete, {failed} failed"
    );
}

#[test]
fn a_rank_killed_or_stopped_at_any_step_ends_the_others() {
    let quiet = LinkPlan::quiet(3, 2);
    for rank in 0..2 {
        for step in 0..150 {
            for kind in [
                RankFaultKind::Kill,
                RankFaultKind::Stop { ns: 10_000_000 },
                RankFaultKind::Stop { ns: 3_000_000_000 },
            ] {
                let fault = RankFault { rank, step, kind };
                check(&LinkPlan {
                    rank_faults: vec![fault],
                    ..quiet.clone()
                });
            }
        }
    }
    // The same group without the fault begins again and completes.
    assert!(run_links(&quiet).complete());
}

#[test]
fn every_segment_of_a_short_run_may_fail_in_every_way() {
    let kinds = [
        LinkFaultKind::Drop,
        LinkFaultKind::Duplicate,
        LinkFaultKind::Reorder,
        LinkFaultKind::Corrupt { bit: 77 },
        LinkFaultKind::Delay { ns: 450_000_000 },
        LinkFaultKind::Cut,
        LinkFaultKind::Stall,
        LinkFaultKind::Break,
    ];
    for (from, to) in [(0, 1), (1, 0)] {
        for channel in [Channel::Control, Channel::Data] {
            for segment in 0..25 {
                for kind in kinds {
                    let fault = LinkFault {
                        from,
                        to,
                        channel,
                        segment,
                        kind,
                    };
                    check(&LinkPlan {
                        tokens: 1,
                        link_faults: vec![fault],
                        ..LinkPlan::quiet(1, 2)
                    });
                }
            }
        }
    }
}

#[test]
fn rings_of_three_and_four_ranks_end_right_or_in_errors_under_every_fault() {
    let kinds = [
        LinkFaultKind::Drop,
        LinkFaultKind::Duplicate,
        LinkFaultKind::Reorder,
        LinkFaultKind::Corrupt { bit: 77 },
        LinkFaultKind::Delay { ns: 450_000_000 },
        LinkFaultKind::Cut,
        LinkFaultKind::Stall,
        LinkFaultKind::Break,
    ];
    // Every sum goes round, so that all bytes of a data connection are a ring's.
    let ways = SumLimits {
        one_shot_bytes_max: 0,
        piece_bytes: 48,
    };
    let plan = |ranks| LinkPlan {
        tokens: 1,
        n_layer: 1,
        ways,
        ..LinkPlan::quiet(1, ranks)
    };
    for (ranks, from, to) in [(3, 0, 1), (3, 1, 2), (3, 2, 0), (4, 3, 0), (4, 0, 2)] {
        assert!(run_links(&plan(ranks)).complete());
        for segment in 0..30 {
            for kind in kinds {
                let fault = LinkFault {
                    from,
                    to,
                    channel: Channel::Data,
                    segment,
                    kind,
                };
                check(&LinkPlan {
                    link_faults: vec![fault],
                    ..plan(ranks)
                });
            }
        }
    }
    for rank in 0..4 {
        for step in 0..120 {
            for kind in [
                RankFaultKind::Kill,
                RankFaultKind::Stop { ns: 3_000_000_000 },
            ] {
                let fault = RankFault { rank, step, kind };
                check(&LinkPlan {
                    rank_faults: vec![fault],
                    ..plan(4)
                });
            }
        }
    }
}

#[test]
fn a_run_is_a_function_of_its_plan() {
    for seed in [1, 7, 99] {
        let plan = LinkPlan::random(seed);
        assert_eq!(run_links(&plan), run_links(&plan));
    }
}

#[test]
fn the_judge_sees_wrong_bytes_that_nothing_else_would() {
    // Without checksums damage of a payload passes: the run must be judged by its bytes.
    let mut seen = 0;
    for segment in 3..20 {
        let report = run_links(&LinkPlan {
            payload_crc: false,
            link_faults: vec![LinkFault {
                from: 0,
                to: 1,
                channel: Channel::Data,
                segment,
                kind: LinkFaultKind::Corrupt { bit: 400 },
            }],
            ..LinkPlan::quiet(5, 2)
        });
        seen += u32::from(report.breach() == Some(Breach::WrongBytes { rank: 1 }));
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn a_run_that_breaks_the_rule_shrinks_to_what_breaks_it() {
    let fault = |from, segment, kind| LinkFault {
        from,
        to: 1 - from,
        channel: Channel::Data,
        segment,
        kind,
    };
    let corrupt = fault(0, 8, LinkFaultKind::Corrupt { bit: 400 });
    let plan = LinkPlan {
        payload_crc: false,
        ranks: 4,
        skewed_clocks: true,
        link_faults: vec![
            fault(1, 9000, LinkFaultKind::Drop),
            corrupt,
            fault(1, 2, LinkFaultKind::Delay { ns: 5 }),
        ],
        rank_faults: vec![RankFault {
            rank: 3,
            step: 100_000,
            kind: RankFaultKind::Kill,
        }],
        ..LinkPlan::quiet(5, 4)
    };
    assert!(run_links(&plan).breach().is_some());
    let least = shrink_links(&plan);
    assert!(run_links(&least).breach().is_some());
    assert_eq!(
        (least.link_faults, least.rank_faults),
        (vec![corrupt], vec![])
    );
    assert_eq!((least.ranks, least.skewed_clocks), (2, false));
}
