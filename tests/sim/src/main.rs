//! `sim`: runs seeds.

fn main() {}
