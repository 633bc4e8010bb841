//! Every byte on a wire.
