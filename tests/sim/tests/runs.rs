//! A few runs, and that a run is its seed's.

use ticketing_sim::cluster::sim::{Rare, run, run_without};
use ticketing_sim::mutants::Mutant;
use ticketing_sim::node::bugs::ShellBug;
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

#[test]
fn what_is_staged_comes_about_and_nothing_is_wrong_with_it() {
    let staged = |bug| {
        let mut all = Rare::default();
        for seed in 1..=8 {
            let outcome = run_without(seed, Keep::Nothing, Mutant::Shell(bug));
            assert_eq!(outcome.failure, None, "{bug:?}, seed {seed}");
            all.add(&outcome.rare);
        }
        all
    };
    // Three nodes or five, and five only.
    let mut scenes = staged(ShellBug::NotFoundUnapplied);
    scenes.add(&staged(ShellBug::MovedAtTruncation));
    assert!(scenes.scenes.iter().all(|played| *played > 0), "{scenes:?}");
    assert!(staged(ShellBug::ExpireWithoutToken).idle_expires > 0);
    let folders = staged(ShellBug::OldFolderVotes);
    let [out, refused, exits] = folders.folders;
    assert!(exits > 0 && out > exits && refused > out, "{folders:?}");
}
