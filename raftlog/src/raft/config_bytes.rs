//! A configuration as bytes: for log entries, snapshots and messages.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | voters |
//! | 1 | 1 | learners |
//! | 2 | 1 | slot of the voter being replaced, 255: none is |
//! | 3 | 1 | 0 |
//! | 4 | 16 each | voters by slot, then the one that replaces one, then learners |

use super::config::{Config, ConfigError, Replacement, Slot};
use crate::limits::{CONFIG_BYTES, MAX_LEARNERS, MAX_VOTERS};
use crate::types::NodeId;

const HEADER_BYTES: usize = 4;
const ID_BYTES: usize = size_of::<NodeId>();
const NO_SLOT: u8 = u8::MAX;

const _: () = {
    let members = MAX_VOTERS + 1 + MAX_LEARNERS;
    assert!((HEADER_BYTES + members * ID_BYTES) as u64 <= CONFIG_BYTES);
    assert!(MAX_VOTERS < NO_SLOT as usize);
};

impl Config {
    /// Adds the configuration's bytes to `bytes`; at most [`CONFIG_BYTES`].
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let replacement = self.replacement();
        let slot = replacement.map_or(NO_SLOT, |replacement| replacement.slot.0);
        let count = |members: &[NodeId]| members.len() as u8;
        bytes.extend([count(self.voters()), count(self.learners()), slot, 0]);
        for member in self.members() {
            bytes.extend(member.0);
        }
    }

    /// The configuration of an entry or a snapshot, which has members.
    ///
    /// # Errors
    /// As [`Config::decode`]; [`ConfigError::VoterCount`] when there are none.
    pub fn decode_members(bytes: &[u8]) -> Result<Self, ConfigError> {
        match Self::decode(bytes) {
            Ok(config) if config == Self::unknown() => Err(ConfigError::VoterCount(0)),
            decoded => decoded,
        }
    }

    /// Reads what [`Config::encode`] wrote, and all of it.
    ///
    /// # Errors
    /// When there are other bytes, or the members cannot be a cluster's.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConfigError> {
        let Some(([voters, learners, slot, 0], ids)) = bytes.split_first_chunk() else {
            return Err(ConfigError::Malformed);
        };
        let (voters, learners) = (usize::from(*voters), usize::from(*learners));
        let replacements = usize::from(*slot != NO_SLOT);
        if ids.len() != (voters + replacements + learners) * ID_BYTES {
            return Err(ConfigError::Malformed);
        }
        if voters + replacements + learners == 0 {
            return Ok(Self::unknown());
        }
        if voters > MAX_VOTERS {
            return Err(ConfigError::VoterCount(voters));
        }
        if learners > MAX_LEARNERS {
            return Err(ConfigError::LearnerCount(learners));
        }
        let mut members = [NodeId::default(); MAX_VOTERS + 1 + MAX_LEARNERS];
        let (chunks, _) = ids.as_chunks();
        for (member, id) in members.iter_mut().zip(chunks) {
            *member = NodeId(*id);
        }
        let (voters, rest) = members.split_at(voters);
        let (new, rest) = rest.split_at(replacements);
        let slot = Slot(*slot);
        let replacement = new.first().map(|new| Replacement { slot, new: *new });
        Self::joint(voters, replacement, &rest[..learners])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &[u8]) -> Vec<NodeId> {
        list.iter().map(|n| NodeId([*n; 16])).collect()
    }

    fn encoded(config: &Config) -> Vec<u8> {
        let mut bytes = Vec::new();
        config.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_configuration_comes_back_from_its_bytes() {
        let replacement = Some(Replacement {
            slot: Slot(4),
            new: NodeId([9; 16]),
        });
        let (five, four) = (ids(&[1, 2, 3, 4, 5]), ids(&[6, 7, 8, 10]));
        let largest = Config::joint(&five, replacement, &four).expect("valid");
        assert_eq!(encoded(&largest).len(), 164);
        for config in [
            largest,
            Config::new(&ids(&[1, 2, 3]), &ids(&[4])).expect("valid"),
            Config::new(&ids(&[1]), &[]).expect("valid"),
            Config::unknown(),
        ] {
            assert_eq!(Config::decode(&encoded(&config)), Ok(config));
        }
    }

    #[test]
    fn an_entrys_configuration_has_members() {
        let one = Config::new(&ids(&[1]), &[]).expect("valid");
        assert_eq!(Config::decode_members(&encoded(&one)), Ok(one));
        let nobody = encoded(&Config::unknown());
        assert_eq!(
            Config::decode_members(&nobody),
            Err(ConfigError::VoterCount(0))
        );
        assert_eq!(Config::decode_members(&[]), Err(ConfigError::Malformed));
    }

    #[test]
    fn other_bytes_are_refused() {
        let config = Config::new(&ids(&[1, 2, 3]), &ids(&[4])).expect("valid");
        let good = encoded(&config);
        for length in 0..good.len() {
            let cut = Config::decode(&good[..length]);
            assert_eq!(cut, Err(ConfigError::Malformed), "{length} bytes");
        }
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Config::decode(&bytes)
        };
        let malformed = Err(ConfigError::Malformed);
        assert_eq!(changed(|bytes| bytes.push(0)), malformed);
        assert_eq!(changed(|bytes| bytes[3] = 1), malformed);
        assert_eq!(changed(|bytes| bytes[2] = 0), malformed);
        assert_eq!(
            changed(|b| b[..2].copy_from_slice(&[4, 0])),
            Err(ConfigError::VoterCount(4))
        );
        assert_eq!(
            changed(|b| b[..2].copy_from_slice(&[0, 4])),
            Err(ConfigError::VoterCount(0))
        );
        assert_eq!(
            changed(|b| b[..3].copy_from_slice(&[3, 0, 3])),
            Err(ConfigError::NoSuchSlot(Slot(3)))
        );
        let twice = Err(ConfigError::Twice(NodeId([1; 16])));
        assert_eq!(changed(|bytes| bytes.copy_within(4..20, 20)), twice);
        let crowd = vec![7; 4 + 251 * 16];
        let mut voters = crowd.clone();
        voters[..4].copy_from_slice(&[251, 0, 255, 0]);
        assert_eq!(Config::decode(&voters), Err(ConfigError::VoterCount(251)));
        let mut learners = crowd;
        learners[..4].copy_from_slice(&[3, 248, 255, 0]);
        assert_eq!(
            Config::decode(&learners),
            Err(ConfigError::LearnerCount(248))
        );
    }
}
