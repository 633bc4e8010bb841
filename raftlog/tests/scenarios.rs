//! The scripts under `tests/raft`, each a story that has gone wrong somewhere, or could.
//!
//! A script is a list of commands, one on a line; `#` begins a comment. Nodes are `a`, `b`, ...;
//! nothing is delivered, persisted late, or waited for unless the script says so.
//!
//! | command | what happens |
//! |---|---|
//! | `nodes 3 learners 1` | voters `a` to `c`, in their slots, then learners; none with any log |
//! | `timing heartbeat 50 election 500 hung 1000` | before `nodes`: how long things take, in ms |
//! | `broken-by VotesTwice` | with the feature `bugs`: the script must fail if cores do that |
//! | `new d` | a node that knows nobody |
//! | `history a term 3 log 1 1 2` | `a` starts with entries of these terms |
//! | `elect a` | `a`'s clock runs out first; everything is delivered |
//! | `tick a 100`, `run 100` | one clock moves; all do, with everything delivered |
//! | `settle`, `settle but append` | deliver until nothing is left; all but one kind |
//! | `deliver a>b`, `deliver a>b append`, `drop a>b append` | what is on its way there, perhaps one kind |
//! | `cut a b`, `isolate a`, `heal` | links that lose everything; none do |
//! | `hold a`, `persist a`, `release a` | the disk persists only when told; now; always again |
//! | `crash a`, `start a` | a process ends with what it has not persisted; and starts again |
//! | `propose a 3`, `confirm a`, `transfer a`, `transfer a b` | what a state machine asks for |
//! | `learner a d`, `remove a d`, `replace a 0 a d` | `a` is asked to change members |
//! | `compact a keep 2` | a snapshot of all that is committed; the log keeps so much before its end |
//! | `fit a`, `room a no` | what a node says of itself |
//! | `lost a b`, `refused a b`, `connected a b` | `a`'s sockets tell of `b` |
//! | `forget` | outputs until now are not looked at any more |
//! | `expect a leads`, `follows`, `candidate`, `pre-candidate` | the role |
//! | `expect a follows b`, `expect a follows nobody`, `expect nobody leads`, `expect b c lead` | who leads |
//! | `expect a term 2`, `commit 3`, `last 4`, `persisted 4`, `base 2` | numbers |
//! | `expect a log 1 1 2` | the terms of the entries in the log |
//! | `expect a voters a b d`, `expect a learners d` | the configuration in force |
//! | `expect a>b append`, `expect a>b no append` | what is on its way |
//! | `expect a said Confirmed`, `expect a not Confirmed` | an output whose text has these words |

#[allow(dead_code, reason = "the crate's own tests use the rest of it")]
#[path = "../src/raft/tests/net.rs"]
mod net;

use std::path::{Path, PathBuf};

use net::{Envelope, Net, node_id};
use ticketing_raftlog::NodeId;
use ticketing_raftlog::raft::{Body, Change, Config, Input, Role, Slot};

mod api {
    pub use ticketing_raftlog::raft::*;
    pub use ticketing_raftlog::{HardState, LogIndex, NodeId, Term};
}

/// A script being run.
struct Script {
    net: Net,
    bug: Option<String>,
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/raft");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 12, "scripts are missing");
    scripts
}

/// Runs a script; an error names the line and says what is not as expected.
fn run(path: &Path, bug: Option<&str>) -> Result<(), String> {
    let text = std::fs::read_to_string(path).expect("a readable script");
    assert!(
        text.starts_with("# Why: "),
        "{} does not say why",
        path.display()
    );
    let mut script = Script {
        net: Net::new(3, 0),
        bug: bug.map(str::to_owned),
    };
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let at = format!("{}:{}: {line}", path.display(), number + 1);
        let call = std::panic::AssertUnwindSafe(|| script.command(&words));
        match std::panic::catch_unwind(call) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Err(format!("{at}: {why}")),
            Err(_) => return Err(format!("{at}: a check failed, as above")),
        }
    }
    Ok(())
}

#[test]
fn every_script_goes_as_it_should() {
    let failed: Vec<String> = scripts()
        .iter()
        .filter_map(|path| run(path, None).err())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a script guards is really guarded by it.
#[cfg(feature = "bugs")]
#[test]
fn scripts_fail_when_the_rule_they_guard_is_broken() {
    let mut broken = 0;
    for path in scripts() {
        let text = std::fs::read_to_string(&path).expect("a readable script");
        for bug in text.lines().filter_map(|l| l.strip_prefix("broken-by ")) {
            let outcome = run(&path, Some(bug.trim()));
            assert!(outcome.is_err(), "{} passes with {bug}", path.display());
            broken += 1;
        }
    }
    assert!(broken >= 7, "every mistake has a script");
}

fn node(word: &str) -> Result<NodeId, String> {
    match word.as_bytes() {
        [letter @ b'a'..=b'z'] => Ok(node_id(letter - b'a' + 1)),
        _ => Err(format!("`{word}` is no node")),
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

fn numbers(words: &[&str]) -> Result<Vec<u64>, String> {
    words.iter().map(|word| number(word)).collect()
}

fn nodes(words: &[&str]) -> Result<Vec<NodeId>, String> {
    words.iter().map(|word| node(word)).collect()
}

fn link(word: &str) -> Result<(NodeId, NodeId), String> {
    let (from, to) = word.split_once('>').ok_or("a link is a>b")?;
    Ok((node(from)?, node(to)?))
}

fn kind(envelope: &Envelope) -> &'static str {
    match envelope.message.body {
        Body::PreVote { .. } => "pre-vote",
        Body::PreVoteAnswer { .. } => "pre-vote-answer",
        Body::Vote { .. } => "vote",
        Body::VoteAnswer { .. } => "vote-answer",
        Body::Append { .. } => "append",
        Body::Matched { .. } => "matched",
        Body::Conflict { .. } => "conflict",
        Body::NeedsSnapshot => "needs-snapshot",
        Body::Heartbeat { .. } => "heartbeat",
        Body::HeartbeatAnswer { .. } => "heartbeat-answer",
        Body::SnapshotChunk { .. } => "chunk",
        Body::SnapshotAnswer { .. } => "chunk-answer",
        Body::TimeoutNow => "timeout-now",
        Body::DoYouLead => "do-you-lead",
        Body::NotLeading => "not-leading",
        Body::TermOver => "term-over",
    }
}

impl Script {
    fn command(&mut self, words: &[&str]) -> Result<(), String> {
        let net = &mut self.net;
        match words {
            ["broken-by", _] => {}
            [
                "timing",
                "heartbeat",
                heartbeat,
                "election",
                election,
                "hung",
                hung,
            ] => {
                net.timing.heartbeat_ms = number(heartbeat)?;
                net.timing.election_ms = number(election)?;
                net.timing.disk_hung_ms = number(hung)?;
            }
            ["nodes", voters] => self.make(number(voters)?, 0)?,
            ["nodes", voters, "learners", learners] => {
                self.make(number(voters)?, number(learners)?)?;
            }
            ["new", who] => net.add(node(who)?, Config::unknown()),
            ["history", who, "term", term, "log", terms @ ..] => {
                let id = node(who)?;
                net.write_log(id, &numbers(terms)?, number(term)?);
                net.start(id);
            }
            ["elect", who] => net.elect(node(who)?),
            ["tick", who, ms] => net.tick(node(who)?, number(ms)?),
            ["run", ms] => net.run(number(ms)?),
            ["settle"] => net.settle(),
            ["settle", "but", but] => while net.deliver_one(|envelope| kind(envelope) != *but) {},
            ["deliver", on, rest @ ..] => {
                let (from, to) = link(on)?;
                // What comes of it on the same link is not delivered with it.
                let of = |e: &&Envelope| {
                    let wanted = rest.is_empty() || rest[0] == kind(e);
                    (e.from, e.to) == (from, to) && wanted
                };
                let count = net.queue.iter().filter(of).count();
                for _ in 0..count {
                    net.deliver_one(|envelope| of(&envelope));
                }
                return (count > 0).then_some(()).ok_or("nothing there".to_owned());
            }
            ["drop", on, rest @ ..] => {
                let (from, to) = link(on)?;
                let before = net.queue.len();
                net.queue.retain(|e| {
                    let wanted = rest.is_empty() || rest[0] == kind(e);
                    (e.from, e.to) != (from, to) || !wanted
                });
                let dropped = net.queue.len() < before;
                return dropped.then_some(()).ok_or("nothing there".to_owned());
            }
            ["cut", a, b] => net.cut_both(node(a)?, node(b)?),
            ["isolate", who] => net.isolate(node(who)?),
            ["heal"] => net.cut.clear(),
            ["hold", who] => net.node_mut(node(who)?).held = true,
            ["persist", who] => net.persist(node(who)?),
            ["release", who] => {
                net.node_mut(node(who)?).held = false;
                net.persist(node(who)?);
            }
            ["crash", who] => net.crash(node(who)?),
            ["start", who] => net.start(node(who)?),
            ["propose", who, count] => {
                let count = u32::try_from(number(count)?).map_err(|e| e.to_string())?;
                net.propose(node(who)?, count);
            }
            ["confirm", who] => net.confirm(node(who)?),
            ["transfer", who] => net.step(node(who)?, Input::Transfer { to: None }),
            ["transfer", who, to] => {
                let to = Some(node(to)?);
                net.step(node(who)?, Input::Transfer { to });
            }
            ["learner", who, new] => {
                let change = Change::AddLearner { node: node(new)? };
                net.change(node(who)?, change);
            }
            ["remove", who, old] => {
                let change = Change::RemoveLearner { node: node(old)? };
                net.change(node(who)?, change);
            }
            ["replace", who, slot, old, new] => {
                let slot = Slot(slot.parse().map_err(|_| "no slot")?);
                let (old, new) = (node(old)?, node(new)?);
                net.change(node(who)?, Change::Replace { slot, old, new });
            }
            ["compact", who, "keep", keep] => net.compact(node(who)?, number(keep)?),
            ["fit", who] => net.step(node(who)?, Input::FitToLead { fit: true }),
            ["room", who, has] => {
                let has_room = *has == "yes";
                net.step(node(who)?, Input::DiskRoom { has_room });
            }
            ["lost", who, peer] => {
                let peer = node(peer)?;
                net.step(node(who)?, Input::PeerLost { peer });
            }
            ["refused", who, peer] => {
                let peer = node(peer)?;
                net.step(node(who)?, Input::PeerRefused { peer });
            }
            ["connected", who, peer] => {
                let peer = node(peer)?;
                net.step(node(who)?, Input::PeerConnected { peer });
            }
            ["forget"] => net.nodes.iter_mut().for_each(|node| node.outputs.clear()),
            ["expect", what @ ..] => return self.expect(what),
            _ => return Err("no such command".to_owned()),
        }
        Ok(())
    }

    fn make(&mut self, voters: u64, learners: u64) -> Result<(), String> {
        let count = |n: u64| u8::try_from(n).map_err(|e| e.to_string());
        let timing = self.net.timing;
        self.net = Net::new(count(voters)?, count(learners)?);
        self.net.timing = timing;
        #[cfg(feature = "bugs")]
        if let Some(name) = &self.bug {
            self.net.bug = Some(bug(name));
        }
        #[cfg(not(feature = "bugs"))]
        assert!(self.bug.is_none());
        for id in self
            .net
            .nodes
            .iter()
            .map(|node| node.id)
            .collect::<Vec<_>>()
        {
            self.net.start(id);
        }
        Ok(())
    }

    fn expect(&self, words: &[&str]) -> Result<(), String> {
        let net = &self.net;
        let found = match words {
            ["nobody", "leads"] => return equal(&net.leader(), &None),
            [among @ .., "lead"] => {
                let leader = net.leader().ok_or("nobody leads")?;
                let fits = nodes(among)?.contains(&leader);
                return fits.then_some(()).ok_or(format!("{leader} leads"));
            }
            [on, rest @ ..] if on.contains('>') => {
                let (from, to) = link(on)?;
                let wanted = rest.last().copied().unwrap_or_default();
                let of = |e: &Envelope| (e.from, e.to) == (from, to) && kind(e) == wanted;
                return equal(&net.queue.iter().any(of), &(rest.len() == 1));
            }
            [who, "said", text @ ..] => return equal(&self.said(who, text)?, &true),
            [who, "not", text @ ..] => return equal(&self.said(who, text)?, &false),
            [who, "follows", "nobody"] => return equal(&net.core(node(who)?).leader(), &None),
            [who, "follows", leader] => {
                return equal(&net.core(node(who)?).leader(), &Some(node(leader)?));
            }
            [who, "log", terms @ ..] => {
                let entries = &net.node(node(who)?).log.entries;
                let found: Vec<u64> = entries.iter().map(|entry| entry.term.0).collect();
                return equal(&found, &numbers(terms)?);
            }
            [who, "voters", voters @ ..] => {
                let config = net.core(node(who)?).config().config;
                return equal(&config.voters(), &&nodes(voters)?[..]);
            }
            [who, "learners", learners @ ..] => {
                let config = net.core(node(who)?).config().config;
                return equal(&config.learners(), &&nodes(learners)?[..]);
            }
            [who, role] => {
                let role = match *role {
                    "leads" => Role::Leader,
                    "follows" => Role::Follower,
                    "candidate" => Role::Candidate,
                    "pre-candidate" => Role::PreCandidate,
                    _ => return Err(format!("`{role}` is no role")),
                };
                return equal(&net.core(node(who)?).role(), &role);
            }
            [who, what, value] => {
                let core = net.core(node(who)?);
                let found = match *what {
                    "term" => core.term().0,
                    "commit" => core.commit().0,
                    "last" => core.last_index().0,
                    "persisted" => core.persisted().0,
                    "base" => net.node(node(who)?).log.base.index.0,
                    _ => return Err(format!("`{what}` is nothing a node has")),
                };
                (found, number(value)?)
            }
            _ => return Err("nothing that can be expected".to_owned()),
        };
        equal(&found.0, &found.1)
    }

    fn said(&self, who: &str, words: &[&str]) -> Result<bool, String> {
        let outputs = &self.net.node(node(who)?).outputs;
        let mut texts = outputs.iter().map(|output| format!("{output:?}"));
        Ok(texts.any(|text| {
            let mut parts = text.split(|c: char| !c.is_alphanumeric());
            words.iter().all(|word| parts.any(|part| part == *word))
        }))
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("found {found:?}")),
    }
}

#[cfg(feature = "bugs")]
fn bug(name: &str) -> ticketing_raftlog::raft::Bug {
    use ticketing_raftlog::raft::Bug;
    match name {
        "CommitsEarlierTermByCounting" => Bug::CommitsEarlierTermByCounting,
        "VotesTwice" => Bug::VotesTwice,
        "AnswersBeforePersisting" => Bug::AnswersBeforePersisting,
        "LeaderCountsUnpersisted" => Bug::LeaderCountsUnpersisted,
        "NoNoop" => Bug::NoNoop,
        "JointCountsOneMajority" => Bug::JointCountsOneMajority,
        "LearnersVote" => Bug::LearnersVote,
        _ => panic!("no mistake is called {name}"),
    }
}
