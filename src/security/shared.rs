//! Values that a reload changes while they are in use.

use std::sync::{Arc, PoisonError, RwLock};

/// A value that every core reads, now and then, and a reload replaces.
#[derive(Debug)]
pub struct Shared<T>(Arc<RwLock<Arc<T>>>);

impl<T> Shared<T> {
    /// Shares a value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }

    /// The value as it is now.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value for whoever reads it from now on.
    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Shared;

    #[test]
    fn whoever_has_the_old_value_keeps_it() {
        let shared = Shared::new(1);
        let other = shared.clone();
        let old = other.get();
        shared.set(2);
        assert_eq!((*old, *other.get()), (1, 2));
    }
}
