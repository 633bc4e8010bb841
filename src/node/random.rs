//! Random bytes from the kernel.

use crate::fatal::Fatal;

/// 128 random bits: an identity.
pub(super) fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    random(&mut id);
    id
}

/// Seeds hashes of what comes from outside, so that nobody can choose keys that
/// collide.
pub(super) fn secret_seed() -> u64 {
    let mut seed = [0; 8];
    random(&mut seed);
    u64::from_le_bytes(seed)
}

fn random(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        Fatal::Environment.exit(format_args!("the kernel gives no random bytes: {error}"));
    }
}
