use super::*;

fn link(name: &str) -> Link {
    profile(name).link()
}

fn profile(name: &str) -> LinkProfile {
    let all = shipped().unwrap();
    all.into_iter().find(|link| link.name == name).unwrap()
}

fn agree(link: &Link, algorithm: Algorithm, ranks: u16, bytes: u64) {
    let run = simulate(link, algorithm, ranks, bytes).unwrap();
    let what = format!("{} of {ranks} ranks, {bytes} bytes", algorithm.name());
    let closed = closed_form_ps(link, algorithm, ranks, bytes);
    assert_eq!(run.ps, closed, "{what}");
    assert_eq!(run.messages, algorithm.messages(ranks), "{what}");
}

#[test]
fn the_closed_form_is_what_the_messages_take_for_any_number_of_ranks() {
    for profile in shipped().unwrap() {
        let link = profile.link();
        for algorithm in Algorithm::ALL {
            for ranks in 2..=64 {
                for bytes in [4, 16 << 10, 1 << 20] {
                    agree(&link, algorithm, ranks, bytes);
                }
            }
        }
    }
}

#[test]
fn a_thousand_and_twenty_four_ranks_agree_too() {
    let link = link("nvlink");
    for algorithm in Algorithm::ALL {
        agree(&link, algorithm, 1024, 16 << 10);
    }
    for ranks in [127, 128, 129, 1000, 1023] {
        agree(&link, Algorithm::Tree, ranks, 1 << 20);
    }
}

#[test]
fn two_ranks_in_one_shot_cost_what_was_fitted() {
    for profile in shipped().unwrap() {
        let link = profile.link();
        for seen in profile.residuals() {
            let cost = closed_form_ps(&link, Algorithm::OneShot, 2, seen.point.bytes);
            let off = cost.abs_diff(seen.fitted_ps);
            // Shares of a picosecond are rounded in each part.
            assert!(off <= 2, "{} {:?} {cost}", profile.name, seen);
        }
    }
}

#[test]
fn every_measured_point_lies_within_fifteen_percent_of_the_model() {
    for profile in shipped().unwrap() {
        for seen in profile.residuals() {
            let within = seen.fitted_ppm().abs() <= 150_000;
            let published = profile.origin == "published";
            assert!(within || published, "{} {seen:?}", profile.name);
        }
    }
}

#[test]
fn a_point_left_out_of_the_fit_does_not_steer_its_own_prediction() {
    let line = |bytes: u64| Point {
        bytes,
        ps: 1000 + ((bytes * 2000) >> 20),
    };
    let mut points: Vec<Point> = (10..=20).map(|power| line(1 << power)).collect();
    for seen in residuals(&points) {
        assert!(seen.fitted_ppm().abs() < 3_000 && seen.held_out_ppm().unwrap().abs() < 3_000);
    }
    points[5].ps *= 2;
    let held_out = residuals(&points)[5].held_out_ps.unwrap();
    assert!(held_out.abs_diff(line(1 << 15).ps) < 10, "{held_out}");
}

#[test]
fn where_a_protocol_changes_the_line_changes() {
    let at = |bytes: u64, ps| Point { bytes, ps };
    let points = [
        at(1024, 1000),
        at(2048, 2000),
        at(4096, 9000),
        at(8192, 9100),
    ];
    let ranges = fit(&points);
    let ends: Vec<u64> = ranges.iter().map(|range| range.last_bytes).collect();
    assert_eq!(ends, [2048, 4095, 8192]);
    let between = line_at(&ranges, 3072).ps(3072);
    assert!((2000..9000).contains(&between), "{between}");
}

#[test]
fn small_vectors_go_in_one_shot_and_large_ones_round_the_ring() {
    let link = link("nvlink");
    let changes = link.crossovers(&Algorithm::ALL, 8);
    assert_eq!(changes.first().unwrap().1, Algorithm::OneShot);
    assert_eq!(changes.last().unwrap().1, Algorithm::Ring);
    assert_eq!(
        link.best(&Algorithm::ALL, 1024, 16 << 10),
        Some(Algorithm::Tree)
    );
}

#[test]
fn one_rank_exchanges_nothing() {
    let link = link("tcp");
    for algorithm in Algorithm::ALL {
        assert_eq!(closed_form_ps(&link, algorithm, 1, 1 << 20), 0);
        assert_eq!(simulate(&link, algorithm, 1, 1 << 20).unwrap().messages, 0);
    }
}
