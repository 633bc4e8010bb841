use std::cell::{Cell, RefCell};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::*;
use crate::lanes::{Doorbell, lane};
use crate::limits::RING_DEPTH;

fn run<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    let executor = Executor::spawn("test", None, main).expect("it starts");
    executor.join().expect("no panic");
}

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

async fn read(socket: &Socket, buffer: &mut [u8]) -> usize {
    poll_fn(|cx| socket.poll_read(cx, buffer))
        .await
        .expect("readable")
}

#[test]
fn jobs_on_helper_threads_do_not_wait_for_each_other_and_may_be_polled_at_will() {
    run(|| async {
        let (go_on, wait) = mpsc::channel();
        let mut first = std::pin::pin!(blocking(move || wait.recv()));
        for _ in 0..1_000 {
            poll_fn(|cx| {
                assert!(first.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        let second = blocking(move || go_on.send(7)).await;
        assert_eq!(second, Ok(()));
        assert_eq!(first.await, Ok(7));
    });
}

#[test]
fn timers_are_due_in_order_and_one_that_was_dropped_is_not() {
    run(|| async {
        let due = Rc::new(RefCell::new(Vec::new()));
        for ms in [30, 10, 20] {
            let due = Rc::clone(&due);
            spawn_local(async move {
                sleep(Duration::from_millis(ms)).await;
                due.borrow_mut().push(ms);
            });
        }
        let never = timeout(Duration::from_millis(1), sleep(Duration::from_secs(60))).await;
        assert_eq!(
            never.map_err(|error| error.kind()),
            Err(io::ErrorKind::TimedOut)
        );
        let begun = Instant::now();
        sleep(Duration::from_millis(60)).await;
        assert!(begun.elapsed() >= Duration::from_millis(60));
        assert_eq!(*due.borrow(), [10, 20, 30]);
    });
}

#[test]
fn no_wake_up_from_another_thread_is_lost() {
    run(|| async {
        let (there, back) = (Doorbell::new(), Doorbell::new());
        let (ask, asked) = lane::<u32>(1, &there);
        let (answer, answered) = lane::<u32>(1, &back);
        std::thread::spawn(move || {
            while let Some(number) = asked.recv_parked(&there) {
                assert_eq!(answer.try_send(number), Ok(()));
            }
        });
        for number in 0..20_000 {
            assert_eq!(ask.try_send(number), Ok(()));
            let came = timeout(Duration::from_secs(20), async {
                loop {
                    poll_fn(|cx| back.poll_rung(cx)).await;
                    if let Some(number) = answered.try_recv() {
                        return number;
                    }
                }
            });
            assert_eq!(came.await.expect("it is woken"), number);
        }
    });
}

#[test]
fn more_sockets_than_the_ring_takes_requests_are_all_served() {
    let sockets = RING_DEPTH as usize + 44;
    run(move || async move {
        let (listener, address) = listen();
        let clients = blocking(move || {
            let connect = |_| TcpStream::connect(address).expect("connected");
            (0..sockets).map(connect).collect::<Vec<_>>()
        });
        let served = Rc::new(Cell::new(0));
        // All of them wait before the first byte comes.
        for _ in 0..sockets {
            let socket = listener.accept().await.expect("accepted");
            let served = Rc::clone(&served);
            spawn_local(async move {
                let mut byte = [0; 8];
                assert_eq!(read(&socket, &mut byte).await, 1);
                let sent = poll_fn(|cx| socket.poll_write(cx, &byte[..1])).await;
                assert_eq!(sent.ok(), Some(1));
                assert_eq!(read(&socket, &mut byte).await, 0, "it is closed");
                served.set(served.get() + 1);
            });
        }
        let mut clients = clients.await;
        blocking(move || {
            for (number, client) in clients.iter_mut().enumerate() {
                client.write_all(&[number as u8]).expect("sent");
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let mut byte = [0];
                client.read_exact(&mut byte).expect("answered");
                assert_eq!(byte, [number as u8]);
            }
        })
        .await;
        let all = timeout(Duration::from_secs(20), async {
            while served.get() < sockets {
                sleep(Duration::from_millis(1)).await;
            }
        });
        all.await.expect("each of them sees its end");
    });
}

#[test]
fn an_end_that_came_with_the_last_bytes_is_seen() {
    run(|| async {
        let (listener, address) = listen();
        let client = blocking(move || {
            let mut client = TcpStream::connect(address).expect("connected");
            client.write_all(b"last").expect("sent");
            client.shutdown(Shutdown::Write).expect("ended");
            client
        });
        let socket = listener.accept().await.expect("accepted");
        let _client = client.await;
        sleep(Duration::from_millis(5)).await;
        let mut buffer = [0; 64];
        let end = timeout(Duration::from_secs(20), async {
            assert_eq!(read(&socket, &mut buffer).await, 4);
            assert_eq!(read(&socket, &mut buffer).await, 0);
            assert_eq!(read(&socket, &mut buffer).await, 0, "and again");
        });
        end.await.expect("no waiting for what never comes");
    });
}

#[test]
fn what_comes_behind_an_urgent_byte_is_read() {
    use rustix::net::{SendFlags, send};
    run(|| async {
        let (listener, address) = listen();
        let client = blocking(move || TcpStream::connect(address).expect("connected"));
        let socket = listener.accept().await.expect("accepted");
        let mut client = client.await;
        let mut buffer = [0; 64];
        for _ in 0..50 {
            // All of it is there before the first byte is read.
            client.write_all(b"one").expect("sent");
            assert_eq!(send(&client, b"!", SendFlags::OOB), Ok(1));
            client.write_all(b"two").expect("sent");
            let all = timeout(Duration::from_secs(20), async {
                let mut came = Vec::new();
                while !came.ends_with(b"two") {
                    let count = read(&socket, &mut buffer).await;
                    came.extend_from_slice(&buffer[..count]);
                }
                came
            });
            assert_eq!(all.await.expect("no waiting for more"), b"onetwo");
        }
    });
}

#[test]
fn a_writer_waits_until_there_is_room_and_loses_nothing() {
    const BYTES: usize = 32 << 20;
    run(|| async {
        let (listener, address) = listen();
        let (go_on, wait) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let mut client = TcpStream::connect(address).expect("connected");
            let _ = wait.recv();
            let (mut sum, mut count, mut part) = (0_u64, 0, vec![0; 1 << 16]);
            loop {
                match client.read(&mut part).expect("readable") {
                    0 => return (sum, count),
                    more => {
                        sum += part[..more]
                            .iter()
                            .map(|&byte| u64::from(byte))
                            .sum::<u64>();
                        count += more;
                    }
                }
            }
        });
        let socket = listener.accept().await.expect("accepted");
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut waited) = (0, 0);
        poll_fn(|cx| {
            while sent < BYTES {
                match socket.poll_write(cx, &bytes[sent..]) {
                    Poll::Ready(more) => sent += more.expect("taken"),
                    Poll::Pending => {
                        waited += 1;
                        // The first time the reader has not begun yet.
                        let _ = go_on.send(());
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(())
        })
        .await;
        assert!(waited > 0, "32 MiB fit no socket");
        socket.finish();
        let read = blocking(move || reader.join().expect("no panic")).await;
        let sum = bytes.iter().map(|&byte| u64::from(byte)).sum();
        assert_eq!(read, (sum, BYTES));
    });
}

#[test]
fn a_socket_that_is_dropped_is_closed_while_others_wait() {
    run(|| async {
        let (listener, address) = listen();
        let client = blocking(move || TcpStream::connect(address).expect("connected"));
        let socket = listener.accept().await.expect("accepted");
        let mut client = client.await;
        let mut byte = [0];
        let waiting = timeout(Duration::from_millis(5), read(&socket, &mut byte)).await;
        assert!(waiting.is_err(), "nothing was sent");
        drop(socket);
        let end = blocking(move || {
            let limit = Duration::from_secs(20);
            client.set_read_timeout(Some(limit)).expect("set");
            client.read(&mut [0]).expect("the end, not a timeout")
        });
        assert_eq!(end.await, 0);
    });
}

#[test]
fn a_socket_that_is_dropped_while_something_happens_to_it_is_closed_for_good() {
    run(|| async {
        let (listener, address) = listen();
        let client = blocking(move || TcpStream::connect(address).expect("connected"));
        let socket = listener.accept().await.expect("accepted");
        let mut client = client.await;
        let mut byte = [0];
        let waiting = timeout(Duration::from_millis(5), read(&socket, &mut byte)).await;
        assert!(waiting.is_err(), "nothing was sent");
        // The byte is on its way to the ring when the watch ends.
        client.write_all(&byte).expect("sent");
        drop(socket);
        let refused = blocking(move || {
            let limit = Duration::from_secs(20);
            client.set_write_timeout(Some(limit)).expect("set");
            let part = [7; 1 << 16];
            loop {
                if let Err(error) = client.write_all(&part) {
                    return error.kind();
                }
            }
        });
        let refused = refused.await;
        assert!(
            matches!(
                refused,
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ),
            "{refused}"
        );
    });
}

#[test]
fn tasks_that_are_left_are_dropped_with_what_they_own() {
    struct Tells(Arc<Doorbell>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.ring();
        }
    }
    let told = Doorbell::new();
    let tells = Tells(Arc::clone(&told));
    run(|| async move {
        let (listener, _) = listen();
        spawn_local(async move {
            let _tells = tells;
            let _ = listener.accept().await;
            unreachable!("nobody connects");
        });
        sleep(Duration::from_millis(1)).await;
    });
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(told.poll_rung(&mut cx).is_ready());
}

#[test]
fn a_burst_waits_to_be_accepted_and_every_socket_has_its_options() {
    use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
    use rustix::net::sockopt;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("readable");
    let most: usize = most.trim().parse().expect("a number");
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).expect("raised");
    // Twice what listeners commonly let wait.
    let burst = most.min(2_048);
    run(move || async move {
        let (listener, address) = listen();
        let mut waiting = Vec::new();
        for number in 0..burst {
            // One that finds no room is only tried again after a second.
            let limit = Duration::from_millis(900);
            let stream = TcpStream::connect_timeout(&address, limit);
            waiting.push(stream.unwrap_or_else(|error| panic!("{number}: {error}")));
        }
        let socket = listener.accept().await.expect("accepted");
        let fd = socket.as_fd();
        assert_eq!(sockopt::socket_reuseaddr(fd), Ok(true));
        assert_eq!(sockopt::tcp_nodelay(fd), Ok(true));
        assert_eq!(sockopt::socket_keepalive(fd), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(fd), Ok(KEEPALIVE_IDLE));
        assert_eq!(sockopt::tcp_keepintvl(fd), Ok(KEEPALIVE_INTERVAL));
        assert_eq!(sockopt::tcp_keepcnt(fd), Ok(KEEPALIVE_PROBES));
    });
}

fn allowed_here() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).expect("asked");
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

#[test]
fn an_executor_stays_on_its_core_with_its_threads_and_without_its_jobs() {
    let everywhere = allowed_here();
    let core = everywhere[everywhere.len() - 1];
    let (tell, told) = mpsc::channel();
    let executor = Executor::spawn("test", Some(core), move || async move {
        let own = allowed_here();
        let thread = std::thread::spawn(allowed_here).join().expect("it ends");
        let job = blocking(allowed_here).await;
        tell.send((own, thread, job)).expect("somebody listens");
    });
    executor.expect("it starts").join().expect("no panic");
    let (own, thread, job) = told.recv().expect("told");
    assert_eq!((own, thread), (vec![core], vec![core]));
    assert_eq!(job, everywhere);
    let never = rustix::thread::CpuSet::MAX_CPU - 1;
    let refused = Executor::spawn("test", Some(never), || async {});
    assert!(refused.is_err(), "there is no core {never}");
}

#[test]
fn cores_are_one_for_each_executor_and_no_two_servers_have_the_same() {
    let everywhere = allowed_here();
    assert_eq!(Cores::free(everywhere.len() + 1).list(), [0; 0]);
    let first = Cores::free(1);
    let second = Cores::free(1);
    // Other tests of this machine may have some.
    assert!(first.of(0) != second.of(0) || first.of(0).is_none());
    let refused = |cores: &[usize], executors| Cores::named(cores, executors).expect_err("wrong");
    let one = everywhere[0];
    assert!(Cores::named(&[one], 1).is_ok_and(|cores| cores.of(0) == Some(one)));
    assert!(refused(&[one], 2).contains("names 1, and 2 executors"));
    assert!(refused(&[one, one], 2).contains("twice"));
    assert!(refused(&[], 1).contains("\"any\""));
    let last = rustix::thread::CpuSet::MAX_CPU - 1;
    assert!(refused(&[last], 1).contains("may not run on"));
    for none in [last + 1, usize::MAX] {
        assert!(refused(&[none], 1).contains("numbered from 0 to"));
    }
}

#[test]
fn an_executor_whose_core_others_want_leaves_it_and_what_is_beside_it_follows() {
    let everywhere = allowed_here();
    if everywhere.len() < 2 {
        return;
    }
    let core = everywhere[0];
    let ends = Arc::new(AtomicBool::new(false));
    let beside: Vec<_> = (0..6)
        .map(|_| {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                keep_here_on(&[core]);
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let (tell, told) = std::sync::mpsc::channel();
    let executor = Executor::spawn("test", Some(core), move || async move {
        let own = own_core().expect("it has one");
        let began = Instant::now();
        while allowed_here() == [core] && began.elapsed() < Duration::from_secs(20) {
            // Busy, as far as it is let.
            let until = Instant::now() + Duration::from_millis(1);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            sleep(Duration::from_micros(1)).await;
        }
        let follower = std::thread::spawn(move || {
            keep_here_on(&[core]);
            let mut was_kept = true;
            own.follow(&mut was_kept);
            (allowed_here(), was_kept)
        });
        tell.send((allowed_here(), follower.join().expect("it ends")))
            .expect("somebody listens");
    });
    executor.expect("it starts").join().expect("no panic");
    ends.store(true, Ordering::Relaxed);
    for thread in beside {
        thread.join().expect("it ends");
    }
    let (own, follower) = told.recv().expect("told");
    assert_eq!(own, everywhere);
    assert_eq!(follower, (everywhere, false));
}

#[test]
fn where_an_administrator_puts_a_thread_it_stays() {
    let everywhere = allowed_here();
    if everywhere.len() < 2 {
        return;
    }
    let (core, other) = (everywhere[0], everywhere[1]);
    let thread = std::thread::spawn(move || {
        // What the process may run on is asked for before anything is kept anywhere.
        cores::stay_on(core).expect("allowed");
        keep_here_on(&[other]);
        assert!(!cores::leave(core) && !cores::return_to(core));
        assert_eq!(allowed_here(), [other]);
        keep_here_on(&[core]);
        assert!(cores::leave(core));
        assert_eq!(allowed_here(), everywhere);
        assert!(cores::return_to(core));
        assert_eq!(allowed_here(), [core]);
    });
    thread.join().expect("it ends");
}

fn keep_here_on(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    rustix::thread::sched_setaffinity(None, &set).expect("allowed");
}

fn on_a_core<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    let everywhere = allowed_here();
    let executor = Executor::spawn("test", everywhere.last().copied(), main).expect("it starts");
    executor.join().expect("no panic");
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn who_expects_news_hears_of_all_of_it_and_sleeps_once_none_is_expected() {
    on_a_core(|| async {
        expect_news(Duration::from_secs(60));
        let began = Instant::now();
        sleep(Duration::from_millis(5)).await;
        assert!(began.elapsed() < Duration::from_secs(30), "a timer is news");
        let answered = blocking(|| {
            std::thread::sleep(Duration::from_millis(5));
            7
        });
        assert_eq!(answered.await, 7, "so is another thread's");
        let (listener, address) = listen();
        let client = TcpStream::connect(address).expect("connected");
        let socket = listener.accept().await.expect("accepted");
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            let mut client = client;
            client.write_all(b"hello").expect("written");
        });
        assert_eq!(read(&socket, &mut [0; 16]).await, 5, "and a client's");
        late.join().expect("no panic");
        assert!(began.elapsed() < Duration::from_secs(30));
    });
    on_a_core(|| async {
        let before = cpu_time();
        expect_news(Duration::from_millis(1));
        sleep(Duration::from_millis(300)).await;
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of 300 ms");
    });
    // Without a core of its own it does not look at all.
    run(|| async {
        let before = cpu_time();
        expect_news(Duration::from_millis(300));
        sleep(Duration::from_millis(300)).await;
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of 300 ms");
    });
}
