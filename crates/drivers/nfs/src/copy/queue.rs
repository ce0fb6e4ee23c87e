//! The work of one copy, shared by its threads.
//!
//! Last in, first out: the tree is walked depth first, which bounds the number of open directories by depth times threads.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Tasks that are waiting. The queue ends when the last task is done, or at the first error.
#[derive(Debug)]
pub(crate) struct Queue<T, E> {
    state: Mutex<State<T, E>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T, E> {
    tasks: Vec<T>,
    /// Tasks that are waiting or running.
    open: usize,
    error: Option<E>,
    ended: bool,
}

impl<T, E> Queue<T, E> {
    /// A queue with one task.
    pub(crate) fn new(first: T) -> Self {
        let state = State { tasks: vec![first], open: 1, error: None, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds tasks.
    pub(crate) fn push(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        let before = state.tasks.len();
        state.tasks.extend(tasks);
        state.open += state.tasks.len() - before;
        drop(state);
        self.changed.notify_all();
    }

    /// Runs tasks until the queue ends.
    pub(crate) fn work(&self, mut run: impl FnMut(T) -> Result<(), E>) {
        while let Some(task) = self.pop() {
            let result = run(task);
            let mut state = self.lock();
            state.open -= 1;
            if let Err(error) = result {
                state.error.get_or_insert(error);
                state.ended = true;
            }
            if state.open == 0 {
                state.ended = true;
            }
            if state.ended {
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                return Some(task);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the queue ends, at most this long. Returns whether it has ended.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let state = self.lock();
        let wait = self.changed.wait_timeout_while(state, limit, |state| !state.ended);
        wait.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Ends the queue with an error.
    pub(crate) fn fail(&self, error: E) {
        let mut state = self.lock();
        state.error.get_or_insert(error);
        state.ended = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Whether the queue has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// The first error.
    pub(crate) fn into_result(self) -> Result<(), E> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.error.map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
