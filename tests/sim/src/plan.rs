//! What a seed draws: sizes, manners of the network and the disks, and which faults there are.

use ticketing_raftlog::raft::Timing;

use crate::world::events::Us;
use crate::world::network::Manners;
use crate::world::rng::Rng;

/// Microseconds in a second and a millisecond.
pub const SECOND: Us = 1_000_000;
/// Microseconds in a millisecond.
pub const MS: Us = 1_000;

/// Most spare machines of a run.
pub const SPARES_MAX: u64 = 2;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed; the page cache survives.
    Kill,
    /// A machine loses its power.
    PowerCut,
    /// Every machine loses its power at once.
    Blackout,
    /// A bit of acknowledged data flips on a disk, and its process ends.
    Rot,
    /// A process stands still for a while.
    Freeze,
    /// One way between two nodes is cut.
    CutOneWay,
    /// Both ways between two nodes are cut.
    CutBothWays,
    /// A node reaches nobody.
    Isolate,
    /// The nodes fall apart into two halves.
    Split,
    /// Two halves that only one node connects.
    Bridge,
    /// Every link is mended.
    Heal,
    /// A connection breaks and comes back.
    Blip,
    /// A sync takes very long.
    Hang,
    /// Others fill a disk but for less than three segments, or remove what they wrote.
    Full,
    /// A node's clock jumps ahead.
    Jump,
    /// A node's clock goes at another rate.
    Drift,
    /// A shard's lane is slow for a while.
    SlowLane,
    /// A client's connections break.
    ClientCut,
    /// The leader hands over.
    Transfer,
    /// A node is stopped in good order.
    Stop,
}

const ALL: [(Fault, u32); 20] = [
    (Fault::Kill, 600),
    (Fault::PowerCut, 500),
    (Fault::Blackout, 150),
    (Fault::Rot, 80),
    (Fault::Freeze, 400),
    (Fault::CutOneWay, 400),
    (Fault::CutBothWays, 400),
    (Fault::Isolate, 500),
    (Fault::Split, 400),
    (Fault::Bridge, 300),
    (Fault::Heal, 700),
    (Fault::Blip, 400),
    (Fault::Hang, 300),
    (Fault::Full, 200),
    (Fault::Jump, 100),
    (Fault::Drift, 300),
    (Fault::SlowLane, 400),
    (Fault::ClientCut, 500),
    (Fault::Transfer, 400),
    (Fault::Stop, 300),
];

/// How one run goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many voters.
    pub nodes: usize,
    /// How many clients.
    pub clients: usize,
    /// Keys that clients want at the same time.
    pub keys: usize,
    /// What the network does while there are faults.
    pub manners: Manners,
    /// Shortest and longest sync.
    pub sync_us: (Us, Us),
    /// Longest way through a lane between two cores.
    pub lane_us: Us,
    /// A core's timing.
    pub timing: Timing,
    /// A snapshot each time that many entries were applied.
    pub snapshot_every: u64,
    /// Largest rate of a clock, either way.
    pub drift_ppm: u64,
    /// Clocks may jump: then nothing that is measured in time is promised.
    pub wild_clocks: bool,
    /// The faults there are.
    pub faults: Vec<Fault>,
    /// Average time between two faults.
    pub fault_every_us: Us,
    /// When the faults stop.
    pub calm_at_us: Us,
    /// Average time that a client thinks between two requests.
    pub think_us: Us,
    /// Requests of a thousand that are of a rude client.
    pub rude_per_mille: u32,
    /// Spare machines, by which an operator replaces voters.
    pub spares: usize,
    /// A newcomer has the address of the one it replaces, and not one of its own.
    pub shared_addresses: bool,
    /// Average time from one staged situation to the next, if there are any.
    pub scene_every_us: Option<Us>,
    /// Average time between two Expires that are out of date, if there are any.
    pub late_expire_every_us: Option<Us>,
    /// Nodes that meet ask each other's names, and judge the answer.
    pub asks_names: bool,
    /// Average time between two times that folders are mixed up, if they are; then names are asked.
    pub folders_every_us: Option<Us>,
    /// Releases of a thousand that a client sends to whatever node it is connected with.
    pub astray_per_mille: u32,
}

impl Plan {
    /// What the seed's stream draws.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let rude_network = rng.chance(500);
        let manners = Manners {
            delay_us: (rng.range(10, 80), rng.range(100, 3_000)),
            slow_us: if rng.chance(300) {
                rng.range(5, 200) * MS
            } else {
                0
            },
            lose_per_mille: if rude_network && rng.chance(700) {
                rng.range(1, 80) as u32
            } else {
                0
            },
            repeat_per_mille: if rude_network && rng.chance(700) {
                rng.range(1, 80) as u32
            } else {
                0
            },
            reorders: rude_network && rng.chance(600),
        };
        let faults: Vec<Fault> = ALL
            .iter()
            .filter(|(_, per_mille)| rng.chance(*per_mille))
            .map(|(fault, _)| *fault)
            .collect();
        let quiet = rng.chance(50);
        let wild_clocks = faults.contains(&Fault::Jump);
        Self {
            nodes: if rng.chance(650) { 3 } else { 5 },
            clients: rng.range(2, 8) as usize,
            keys: rng.range(1, 6) as usize,
            manners,
            sync_us: (rng.range(50, 300), rng.range(400, 8_000)),
            lane_us: if rng.chance(300) {
                rng.range(1, 30) * MS
            } else {
                100
            },
            timing: Timing::default(),
            snapshot_every: rng.range(30, 400),
            drift_ppm: 400,
            wild_clocks,
            faults: if quiet { Vec::new() } else { faults },
            fault_every_us: rng.range(150, 3_000) * MS,
            calm_at_us: rng.range(8, 30) * SECOND,
            think_us: rng.range(5, 400) * MS,
            rude_per_mille: if rng.chance(700) {
                rng.range(50, 400) as u32
            } else {
                0
            },
            spares: 0,
            shared_addresses: false,
            scene_every_us: None,
            late_expire_every_us: None,
            astray_per_mille: 0,
            asks_names: false,
            folders_every_us: None,
        }
    }

    /// Folders are mixed up, whatever was drawn.
    pub fn mixes_folders(&mut self, every_us: Us) {
        self.asks_names = true;
        self.folders_every_us = Some(every_us);
    }

    /// Members change, whatever was drawn.
    pub fn changes_members(&mut self) {
        self.spares = SPARES_MAX as usize;
    }

    /// What another stream of the seed draws: what would hardly ever happen by itself.
    pub fn draw_rare(&mut self, rng: &mut Rng) {
        if rng.chance(100) {
            self.scene_every_us = Some(rng.range(1_000, 5_000) * MS);
        }
        if rng.chance(100) {
            self.late_expire_every_us = Some(rng.range(200, 2_000) * MS);
        }
        if rng.chance(150) {
            self.astray_per_mille = rng.range(50, 600) as u32;
        }
        if rng.chance(200) {
            self.mixes_folders(rng.range(300, 2_000) * MS);
        }
    }

    /// What another stream of the seed draws: whether members change.
    pub fn draw_members(&mut self, rng: &mut Rng) {
        if rng.chance(450) {
            self.spares = rng.range(1, SPARES_MAX) as usize;
        }
        self.shared_addresses = rng.chance(400);
    }
}
