//! The executors: one thread each, its tasks, its timers and its ring.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use super::cores;
use super::ring::{Interest, Ring};
use super::starvation::{CoreWatch, OwnCore};
use crate::limits::{CORE_AWAY, CORE_AWAY_FACTOR, CORE_AWAY_MOST};

/// Polls of tasks between two looks at the sockets.
const POLLS_PER_ROUND: usize = 128;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// A running executor: one thread, one ring.
#[derive(Debug)]
pub struct Executor {
    thread: JoinHandle<()>,
}

impl Executor {
    /// Starts a thread named `name` and runs the future that `main` makes on an
    /// executor of its own until it ends; tasks that are left then are dropped.
    /// The thread, and those that `main` starts, stay on `core` if there is one.
    ///
    /// # Errors
    /// When the thread or its ring cannot be made, or kept on that core: the reason
    /// the kernel gave.
    pub fn spawn<F>(
        name: &str,
        core: Option<usize>,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        let (started, wait) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let kept = core.map_or(Ok(()), cores::stay_on);
                let local = match kept.and_then(|()| Local::new(core)) {
                    Ok(local) => local,
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                local.run(async move { main().await });
            })?;
        match wait.recv() {
            Ok(Ok(())) => Ok(Self { thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the executor's thread ended at start")),
        }
    }

    /// Waits for the executor's main future to end.
    ///
    /// # Errors
    /// When its thread panicked.
    pub fn join(self) -> io::Result<()> {
        self.thread
            .join()
            .map_err(|_| io::Error::other("an executor's thread panicked"))
    }
}

/// Runs `task` on this executor until it ends by itself.
///
/// # Panics
/// On a thread that is no executor's.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) {
    current().spawn(Box::pin(task));
}

/// The part of an executor that other threads know.
#[derive(Debug)]
struct Shared {
    // Tasks that other threads have woken; each at most once at a time.
    woken: Sender<usize>,
    // It sleeps, or is about to: then the bell must be rung.
    asleep: AtomicBool,
    bell: OwnedFd,
}

/// What wakes one task, from any thread.
#[derive(Debug)]
struct TaskWaker {
    shared: Arc<Shared>,
    place: usize,
    // It is to be polled already.
    scheduled: AtomicBool,
    // It has ended: its place may be another task's by now.
    ended: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.ended.load(Ordering::Acquire) || self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_local = CURRENT.try_with(|current| match &*current.borrow() {
            Some(local) if Arc::ptr_eq(&local.shared, &self.shared) => {
                local.runnable.borrow_mut().push_back(self.place);
                true
            }
            _ => false,
        });
        if is_local == Ok(true) {
            return;
        }
        // An executor that has ended needs nobody to be woken.
        if self.shared.woken.send(self.place).is_ok()
            && self.shared.asleep.swap(false, Ordering::SeqCst)
        {
            // It can fail only when the count is full: then it has been rung.
            let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
        }
    }
}

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    // `None` while it is being polled.
    future: Option<LocalFuture>,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

/// One executor, on its thread.
pub(super) struct Local {
    shared: Arc<Shared>,
    woken: Receiver<usize>,
    tasks: RefCell<Slab<Task>>,
    runnable: RefCell<VecDeque<usize>>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_timer: Cell<u64>,
    ring: RefCell<Ring>,
    // It has a core to itself, as far as this process is concerned; what else the core is wanted for.
    core: Option<Arc<OwnCore>>,
    watch: RefCell<Option<CoreWatch>>,
    // Until when news is likely; and from when on it may look for it, after another
    // process was met on the core.
    expected_until: Cell<Instant>,
    look_from: Cell<Instant>,
    // Tasks that go on once the sockets have been looked at.
    after_io: RefCell<Vec<Waker>>,
}

impl Local {
    fn new(core: Option<usize>) -> io::Result<Rc<Self>> {
        let now = Instant::now();
        let (sender, woken) = crossbeam_channel::unbounded();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ring = Ring::new(bell.as_fd())?;
        Ok(Rc::new(Self {
            shared: Arc::new(Shared {
                woken: sender,
                asleep: AtomicBool::new(false),
                bell,
            }),
            woken,
            tasks: RefCell::new(Slab::new()),
            runnable: RefCell::new(VecDeque::new()),
            timers: RefCell::new(BTreeMap::new()),
            next_timer: Cell::new(0),
            ring: RefCell::new(ring),
            core: core.map(|core| Arc::new(OwnCore::new(core))),
            watch: RefCell::new(core.map(|core| CoreWatch::new(core, now))),
            expected_until: Cell::new(now),
            look_from: Cell::new(now),
            after_io: RefCell::new(Vec::new()),
        }))
    }

    fn run(self: Rc<Self>, main: impl Future<Output = ()> + 'static) {
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&self)));
        let ended = Rc::new(Cell::new(false));
        let end = Rc::clone(&ended);
        self.spawn(Box::pin(async move {
            main.await;
            end.set(true);
        }));
        while !ended.get() {
            self.watch_core();
            self.run_tasks();
            self.take_woken();
            self.fire_timers();
            let has_work = !self.runnable.borrow().is_empty() || !self.after_io.borrow().is_empty();
            if has_work || ended.get() {
                self.ring.borrow_mut().turn(None);
            } else {
                self.sleep();
            }
            for waker in self.after_io.take() {
                waker.wake();
            }
        }
        // What they own gives back what it has of this executor, so it must
        // still be there.
        let left = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(left);
        CURRENT.with(|current| current.borrow_mut().take());
    }

    fn has_core(&self) -> bool {
        self.core.as_ref().is_some_and(|core| core.is_kept())
    }

    fn watch_core(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut()
            && let Some(kept) = watch.look(Instant::now())
            && let Some(core) = &self.core
        {
            core.keep(kept);
        }
    }

    fn spawn(&self, future: LocalFuture) {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let place = entry.key();
        let handle = Arc::new(TaskWaker {
            shared: Arc::clone(&self.shared),
            place,
            scheduled: AtomicBool::new(true),
            ended: AtomicBool::new(false),
        });
        entry.insert(Task {
            future: Some(future),
            waker: Waker::from(Arc::clone(&handle)),
            handle,
        });
        self.runnable.borrow_mut().push_back(place);
    }

    fn run_tasks(&self) {
        for _ in 0..POLLS_PER_ROUND {
            let Some(place) = self.runnable.borrow_mut().pop_front() else {
                return;
            };
            self.run_task(place);
        }
    }

    fn run_task(&self, place: usize) {
        let (mut future, handle, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            // A wake-up from another thread may come behind the task's end.
            let Some(task) = tasks.get_mut(place) else {
                return;
            };
            let Some(future) = task.future.take() else {
                return;
            };
            (future, Arc::clone(&task.handle), task.waker.clone())
        };
        // From here on whatever wakes it has it polled once more. A swap and not a
        // store: who woke it before wrote first what this poll must see.
        handle.scheduled.swap(false, Ordering::AcqRel);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(()) => {
                handle.ended.store(true, Ordering::Release);
                let ended = self.tasks.borrow_mut().remove(place);
                // Their drops may come back here.
                drop(ended);
                drop(future);
            }
            Poll::Pending => self.tasks.borrow_mut()[place].future = Some(future),
        }
    }

    fn take_woken(&self) -> bool {
        let mut runnable = self.runnable.borrow_mut();
        let before = runnable.len();
        runnable.extend(self.woken.try_iter());
        runnable.len() > before
    }

    fn fire_timers(&self) {
        loop {
            let waker = {
                let mut timers = self.timers.borrow_mut();
                let Some(first) = timers.first_entry() else {
                    return;
                };
                if first.key().0 > Instant::now() {
                    return;
                }
                first.remove()
            };
            waker.wake();
        }
    }

    /// Looks for news as long as it is expected, instead of sleeping: true when
    /// there is some. Going to sleep and being woken takes longer than most of what
    /// an executor waits for.
    fn look(&self, due: Option<Instant>) -> bool {
        let mut looked = Instant::now();
        let until = due.map_or(self.expected_until.get(), |due| {
            due.min(self.expected_until.get())
        });
        if !self.has_core() || looked >= until || looked < self.look_from.get() {
            return false;
        }
        loop {
            if self.take_woken() || self.ring.borrow_mut().has_news() {
                return true;
            }
            // The append thread is on this core too.
            std::thread::yield_now();
            let now = Instant::now();
            let away = now - looked;
            if away > CORE_AWAY {
                // Another process wants this core. Who gives way to it by looking
                // may get the core back only a scheduler's slice later; who sleeps
                // and is woken gets it at once.
                let sleep_at_once = (away * CORE_AWAY_FACTOR).min(CORE_AWAY_MOST);
                self.look_from.set(now + sleep_at_once);
                return false;
            }
            if now >= until {
                return false;
            }
            looked = now;
        }
    }

    fn sleep(&self) {
        let due = self
            .timers
            .borrow()
            .first_key_value()
            .map(|((at, _), _)| *at);
        if self.look(due) {
            self.ring.borrow_mut().turn(None);
            return;
        }
        let limit = due.map(|at| at.saturating_duration_since(Instant::now()));
        // Whoever wakes a task from now on rings the bell; who did before is seen
        // here.
        self.shared.asleep.store(true, Ordering::SeqCst);
        if self.take_woken() {
            self.shared.asleep.store(false, Ordering::SeqCst);
            self.ring.borrow_mut().turn(None);
            return;
        }
        self.ring.borrow_mut().turn(Some(limit));
        self.shared.asleep.store(false, Ordering::SeqCst);
        self.take_woken();
    }
}

/// Goes on once this executor has looked at its sockets, and has polled those
/// that wait for what arrived there.
pub async fn after_io() {
    let mut waits = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waits, true) {
            return Poll::Ready(());
        }
        current().after_io.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// The core of the calling thread's executor, for a thread beside it that is to stay where it stays.
pub fn own_core() -> Option<Arc<OwnCore>> {
    CURRENT.with(|current| {
        current
            .borrow()
            .as_ref()
            .and_then(|local| local.core.clone())
    })
}

/// Says that this executor will most likely have something to do within that
/// time: on a core of its own it looks for it until then, instead of sleeping. On
/// a thread that is no executor's it says nothing.
pub fn expect_news(within: Duration) {
    CURRENT.with(|current| {
        if let Some(local) = &*current.borrow()
            && local.has_core()
        {
            let until = Instant::now() + within;
            local
                .expected_until
                .set(until.max(local.expected_until.get()));
        }
    });
}

fn current() -> Rc<Local> {
    let local = CURRENT.with(|current| current.borrow().clone());
    match local {
        Some(local) => local,
        None => panic!("this thread is no executor's"),
    }
}

/// A descriptor that this executor watches; drop it before the descriptor.
pub(super) struct Watch {
    local: Rc<Local>,
    place: usize,
}

impl Watch {
    pub(super) fn new(fd: BorrowedFd<'_>, interest: Interest) -> Self {
        let local = current();
        let place = local.ring.borrow_mut().watch(fd, interest);
        Self { local, place }
    }

    /// Ready when a call on the descriptor may get somewhere.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.local.ring.borrow_mut().poll_ready(self.place, cx)
    }

    /// Less came than there was room for.
    pub(super) fn drained(&self) {
        self.local.ring.borrow_mut().drained(self.place);
    }

    /// The call would have had to wait.
    pub(super) fn not_ready(&self) {
        self.local.ring.borrow_mut().not_ready(self.place);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.place).finish()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.local.ring.borrow_mut().forget(self.place);
    }
}

/// Ready at a point in time.
pub(super) struct Timer {
    local: Rc<Local>,
    at: Instant,
    // Its place among the timers, once somebody waits for it.
    number: Option<u64>,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timer").field(&self.at).finish()
    }
}

impl Timer {
    pub(super) fn after(duration: Duration) -> Self {
        let now = Instant::now();
        // So far away that nobody sees the difference, and no overflow.
        const FAR: Duration = Duration::from_secs(86_400 * 365);
        Self {
            local: current(),
            at: now + duration.min(FAR),
            number: None,
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| {
            let number = self.local.next_timer.get();
            self.local.next_timer.set(number + 1);
            number
        });
        self.number = Some(number);
        let mut timers = self.local.timers.borrow_mut();
        match timers.get_mut(&(self.at, number)) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(timers.insert((self.at, number), cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let removed = self.local.timers.borrow_mut().remove(&(self.at, number));
            drop(removed);
        }
    }
}
