//! A few runs, and that a run is its seed's.

use ticketing_sim::cluster::sim::run;
use ticketing_sim::world::story::Keep;

#[test]
fn the_same_seed_is_the_same_run_whether_it_is_told_or_not() {
    for seed in [3, 8, 21] {
        let (first, again) = (
            run(seed, Keep::Nothing, None),
            run(seed, Keep::Last(50), None),
        );
        assert_eq!(
            (first.hash, first.events),
            (again.hash, again.events),
            "seed {seed}"
        );
        assert_eq!(first.summary, again.summary);
        assert_eq!(again.story.len(), 50);
    }
    assert_ne!(
        run(3, Keep::Nothing, None).hash,
        run(8, Keep::Nothing, None).hash
    );
}

#[test]
fn a_few_seeds_hold() {
    for seed in 1..=25 {
        let outcome = run(seed, Keep::Nothing, None);
        assert_eq!(
            outcome.failure, None,
            "seed {seed}: make sim SEED={seed} tells it all"
        );
        assert!(
            outcome.events > 1_000 && outcome.virtual_us > 80_000_000,
            "seed {seed}"
        );
    }
}
