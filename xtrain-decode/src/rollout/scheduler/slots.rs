//! Free sequence slots: places in the batch that no sequence has.

/// The free slots. The last one is handed out first.
#[derive(Debug)]
pub(super) struct FreeSlots {
    free: Vec<SeqSlot>,
}

/// A free place in the batch and in the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeqSlot {
    /// Number of the sequence in the cache.
    pub(super) number: u32,
    /// The group whose prompt the cache still holds under this number.
    pub(super) prompt_of: Option<usize>,
}

impl FreeSlots {
    /// Slots `0..n`. Slot 0 is handed out first.
    pub(super) fn new(n: usize) -> FreeSlots {
        FreeSlots { free: (0..n as u32).rev().map(|number| SeqSlot { number, prompt_of: None }).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a slot that holds the prompt of `group`, or else any slot. There must be a free one.
    pub(super) fn take(&mut self, group: Option<usize>) -> SeqSlot {
        let holds = |slot: &SeqSlot| group.is_some() && slot.prompt_of == group;
        let at = self.free.iter().position(holds).unwrap_or(self.free.len() - 1);
        self.free.remove(at)
    }

    pub(super) fn put(&mut self, slot: SeqSlot) {
        self.free.push(slot);
    }

    /// Clears the record of the prompts in the slots. Returns the numbers of the slots that held one.
    pub(super) fn take_prompts(&mut self) -> Vec<u32> {
        let held = self.free.iter_mut().filter_map(|slot| slot.prompt_of.take().map(|_| slot.number));
        held.collect()
    }
}
