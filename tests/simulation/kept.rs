//! What a side keeps, counted where it is kept: each chunk in the flow is one [`Kept`], and a side knows how many live.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// How many chunks one side's flow keeps.
#[derive(Clone, Default)]
pub struct Keeper(Rc<Cell<u64>>);

/// A chunk's content, for as long as the flow keeps it.
pub struct Kept {
    pub content: u64,
    keeper: Keeper,
}

impl Keeper {
    pub fn keep(&self, content: u64) -> Kept {
        self.0.set(self.0.get() + 1);
        Kept { content, keeper: self.clone() }
    }

    pub fn count(&self) -> u64 {
        self.0.get()
    }
}

impl Clone for Kept {
    fn clone(&self) -> Kept {
        self.keeper.keep(self.content)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper.0.set(self.keeper.0.get() - 1);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.content)
    }
}
