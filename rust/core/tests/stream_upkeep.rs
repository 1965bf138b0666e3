//! What a subscription's slow timers do to its stream and its group, on the model and a clock that is moved by hand:
//! consumers of ended processes, and trimming.

#[path = "stream_upkeep/consumers.rs"]
mod consumers;
#[path = "stream_upkeep/trim.rs"]
mod trim;
#[path = "stream_upkeep/world.rs"]
mod world;
