//! The memory that a cache allocates at its start.
use xtrain_model::Model;

use super::kind::{KvKind, Room};
use super::shape::CacheShape;

impl KvKind {
    /// Number of slots that a cache of this kind allocates for `room`, if its sequences are as long as they may be. 0:
    /// none at the start.
    pub fn allocated_slots(self, room: Room) -> u64 {
        let all = (self.slots(room.positions) as u64).saturating_mul(room.sequences as u64);
        match (self, room.slots) {
            (KvKind::Off | KvKind::Growing, _) => 0,
            (KvKind::Contiguous | KvKind::Sinks { .. }, _) | (_, None) => all,
            (KvKind::Paged { page } | KvKind::Int8 { page }, Some(slots)) => (slots / page * page) as u64,
        }
    }

    /// Bytes that these slots allocate for `model`: the memory of a tensor has one of eight sizes per power of two on the
    /// CPU, and is a block of the memory pool on a GPU. A sinks cache also has the lists of keys, rotated keys and values
    /// that the rows of a pass attend to in one layer: those of all slots.
    pub fn allocated_bytes(self, model: &Model, room: Room) -> u64 {
        let shape = CacheShape::of(model).stored_as(self.dtype());
        let lists = if self.keeps_all() { 0 } else { 3 };
        let pools = (2 * shape.n_layers + lists) as u64;
        shape.pool_bytes(self.allocated_slots(room), &shape.device).saturating_mul(pools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_counted_if_it_is_allocated_at_the_start() {
        let room = Room { sequences: 3, positions: 10, slots: None };
        assert_eq!(KvKind::Growing.allocated_slots(room), 0);
        assert_eq!(KvKind::Off.allocated_slots(room), 0);
        assert_eq!(KvKind::Contiguous.allocated_slots(room), 30);
        assert_eq!((KvKind::Paged { page: 8 }).allocated_slots(room), 48);
        assert_eq!((KvKind::Int8 { page: 8 }).allocated_slots(room), 48);
        assert_eq!((KvKind::Sinks { sinks: 2, window: 5 }).allocated_slots(room), 21);
        assert_eq!(KvKind::Growing.allocated_slots(Room { slots: Some(7), ..room }), 0);
        assert_eq!(KvKind::Contiguous.allocated_slots(Room { slots: Some(7), ..room }), 30);
        assert_eq!((KvKind::Paged { page: 8 }).allocated_slots(Room { slots: Some(31), ..room }), 24);
    }
}
