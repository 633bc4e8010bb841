//! The wheel against a sorted list.

use proptest::prelude::*;

use super::{HORIZON_MS, TimerArena, TimerNode, TimerWheel};

struct Nodes(Vec<TimerNode>);

impl TimerArena for Nodes {
    fn timer_mut(&mut self, id: u32) -> &mut TimerNode {
        &mut self.0[id as usize]
    }
}

impl Nodes {
    fn new(count: usize) -> Self {
        Self(vec![TimerNode::idle(); count])
    }
}

/// Advances and takes everything that is due.
fn fire(wheel: &mut TimerWheel, nodes: &mut Nodes, now_ms: u64) -> Vec<u32> {
    wheel.advance_to(nodes, now_ms);
    std::iter::from_fn(|| wheel.pop_due(nodes)).collect()
}

const TIMERS: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    Arm { id: u32, in_ms: u64 },
    Cancel { id: u32 },
    Advance { by_ms: u64 },
    AdvanceToNext,
}

/// Times close by and far away, with many equal ones.
fn span_ms() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4_u64,
        0..200_u64,
        0..HORIZON_MS,
        Just(64),
        Just(4_096),
        Just(HORIZON_MS - 1)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..TIMERS, span_ms()).prop_map(|(id, in_ms)| Step::Arm { id, in_ms }),
        1 => (0..TIMERS).prop_map(|id| Step::Cancel { id }),
        2 => span_ms().prop_map(|by_ms| Step::Advance { by_ms }),
        2 => Just(Step::AdvanceToNext),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Timers come due at their deadline, not a tick early, by deadline and then by insertion.
    #[test]
    fn fires_like_a_sorted_list(
        start_ms in prop_oneof![0..100_u64, (1_u64 << 40) - 100..(1_u64 << 40) + 100],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut nodes = Nodes::new(TIMERS as usize);
        let mut wheel = TimerWheel::new(start_ms);
        // (deadline, insertion, id): what is set, in the order in which it has to fire.
        let mut model: Vec<(u64, usize, u32)> = Vec::new();
        let mut now_ms = start_ms;
        for (insertion, step) in steps.into_iter().enumerate() {
            match step {
                Step::Arm { id, in_ms } => {
                    if !nodes.0[id as usize].is_armed() {
                        wheel.arm(&mut nodes, id, now_ms + in_ms);
                        model.push((now_ms + in_ms, insertion, id));
                    }
                }
                Step::Cancel { id } => {
                    wheel.cancel(&mut nodes, id);
                    model.retain(|&(_, _, other)| other != id);
                }
                Step::Advance { by_ms } => now_ms += by_ms,
                Step::AdvanceToNext => now_ms = now_ms.max(wheel.next_deadline_ms().unwrap_or(0)),
            }
            model.sort_unstable();
            let earliest_ms = model.first().map(|&(deadline_ms, ..)| deadline_ms);
            prop_assert_eq!(wheel.next_deadline_ms().map(|next_ms| next_ms.max(now_ms)),
                earliest_ms.map(|earliest_ms| earliest_ms.max(now_ms)));
            if matches!(step, Step::Advance { .. } | Step::AdvanceToNext) {
                let due = model.partition_point(|&(deadline_ms, ..)| deadline_ms <= now_ms);
                let expected: Vec<u32> = model.drain(..due).map(|(_, _, id)| id).collect();
                prop_assert_eq!(fire(&mut wheel, &mut nodes, now_ms), expected);
            }
            prop_assert_eq!(wheel.armed(), model.len());
        }
    }
}

#[test]
fn a_deadline_already_reached_is_due_at_once() {
    let (mut nodes, mut wheel) = (Nodes::new(3), TimerWheel::new(1_000));
    wheel.arm(&mut nodes, 0, 1_000);
    wheel.arm(&mut nodes, 1, 3);
    wheel.arm(&mut nodes, 2, 1_001);
    assert_eq!(wheel.next_deadline_ms(), Some(1_000));
    assert_eq!(fire(&mut wheel, &mut nodes, 1_000), [0, 1]);
    assert_eq!(wheel.next_deadline_ms(), Some(1_001));
}

#[test]
fn due_timers_can_be_cancelled_and_set_again() {
    let (mut nodes, mut wheel) = (Nodes::new(3), TimerWheel::new(0));
    for id in 0..3 {
        wheel.arm(&mut nodes, id, 5);
    }
    wheel.advance_to(&mut nodes, 5);
    wheel.cancel(&mut nodes, 1);
    wheel.cancel(&mut nodes, 1);
    assert_eq!(wheel.armed(), 2);
    wheel.arm(&mut nodes, 1, 6);
    assert_eq!(fire(&mut wheel, &mut nodes, 5), [0, 2]);
    assert_eq!(fire(&mut wheel, &mut nodes, 6), [1]);
    assert_eq!(wheel.next_deadline_ms(), None);
    assert_eq!(nodes.0[1].deadline_ms(), 6);
}

#[test]
fn the_last_millisecond_of_all_fires() {
    let (mut nodes, mut wheel) = (Nodes::new(1), TimerWheel::new(u64::MAX - 9));
    wheel.arm(&mut nodes, 0, u64::MAX);
    assert_eq!(
        fire(&mut wheel, &mut nodes, u64::MAX - 1),
        Vec::<u32>::new()
    );
    assert_eq!(fire(&mut wheel, &mut nodes, u64::MAX), [0]);
}

#[test]
fn a_deadline_just_inside_the_horizon_fires() {
    let (mut nodes, mut wheel) = (Nodes::new(1), TimerWheel::new(77));
    wheel.arm(&mut nodes, 0, 77 + HORIZON_MS - 1);
    assert_eq!(
        fire(&mut wheel, &mut nodes, 77 + HORIZON_MS - 2),
        Vec::<u32>::new()
    );
    assert_eq!(fire(&mut wheel, &mut nodes, 77 + HORIZON_MS - 1), [0]);
}

#[test]
#[should_panic(expected = "horizon")]
fn a_deadline_at_the_horizon_is_refused() {
    TimerWheel::new(77).arm(&mut Nodes::new(1), 0, 77 + HORIZON_MS);
}

#[test]
fn a_node_is_small() {
    assert!(size_of::<TimerNode>() <= 24);
}
