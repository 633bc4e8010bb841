//! The story of a run, and its hash.

use std::collections::VecDeque;

use super::events::Us;

/// How much of a story is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Only the hash.
    Nothing,
    /// The last lines.
    Last(usize),
    /// Everything, printed as it happens.
    Print,
}

/// Hashes what happens, and tells it in words when somebody wants to read it.
///
/// The hash is over numbers, never over text or addresses, so it is the same in every build.
#[derive(Debug)]
pub struct Story {
    keep: Keep,
    lines: VecDeque<String>,
    hash: u64,
    events: u64,
}

impl Story {
    /// An empty story.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            lines: VecDeque::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
        }
    }

    /// Notes an event by numbers that tell it from every other one.
    pub fn note(&mut self, numbers: &[u64]) {
        self.events += 1;
        for &number in numbers {
            self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    /// Tells it in words, if they are kept.
    pub fn tell(&mut self, now_us: Us, words: impl FnOnce() -> String) {
        let line = match self.keep {
            Keep::Nothing => return,
            Keep::Last(_) | Keep::Print => {
                let (s, us) = (now_us / 1_000_000, now_us % 1_000_000);
                format!("{s:4}.{us:06} {}", words())
            }
        };
        match self.keep {
            Keep::Last(most) => {
                if self.lines.len() == most {
                    self.lines.pop_front();
                }
                self.lines.push_back(line);
            }
            Keep::Print => println!("{line}"),
            Keep::Nothing => {}
        }
    }

    /// The lines kept, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The hash of all that was noted.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events were noted.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::{Keep, Story};

    #[test]
    fn the_hash_is_of_the_events_and_the_last_lines_stay() {
        let tell = |keep| {
            let mut story = Story::new(keep);
            for number in 0..5 {
                story.note(&[number, 7]);
                story.tell(number, || format!("line {number}"));
            }
            story
        };
        let (quiet, told) = (tell(Keep::Nothing), tell(Keep::Last(2)));
        assert_eq!((quiet.hash(), quiet.events()), (told.hash(), 5));
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.len() == 2 && lines[1].ends_with("line 4"));
        let mut other = Story::new(Keep::Nothing);
        other.note(&[7, 0]);
        assert_ne!(other.hash(), quiet.hash());
    }
}
