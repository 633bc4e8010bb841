#!/usr/bin/env python3
"""Where a hand-over of one hot key goes, by the kernel's tracepoints. Needs root and tracefs.

trace-hand-over.py TICKETING BENCH: runs `TICKETING serve --durability sync` and `BENCH load` with 257
tasks on one key, traces 0.3 s of it, and prints the median of each step. Tracing slows all of it: the
shares count, not the sums.
"""
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TRACING = "/sys/kernel/tracing/"
EVENTS = ("sched:sched_switch syscalls:sys_enter_sendto syscalls:sys_exit_recvfrom "
          "syscalls:sys_enter_pwrite64 syscalls:sys_exit_fdatasync")
STEPS = [
    ("write", "synced", "the append: write and sync"),
    ("synced", "granted", "back to the executor, commit, apply, the grant to the socket"),
    ("granted", "heard", "the client is woken and reads"),
    ("heard", "released", "the client's task, its release to the socket"),
    ("released", "read", "the executor reads it"),
    ("read", "next", "decide, propose, build the batch, hand it over"),
]


def put(file, text):
    with open(TRACING + file, "w") as f:
        f.write(text)


def traced(ticketing, bench):
    """The trace of 0.3 s in the middle of a run."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        server = subprocess.Popen(
            [ticketing, "serve", "--listen", "127.0.0.1:0", "--data-dir", folder + "/data"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            address = re.search(r"listening on (\S+)", server.stdout.readline())[1]
            load = [bench, "load", "--connect", address, "--tasks", "257", "--keys", "1", "--pairs", "20000"]
            running = threading.Thread(target=lambda: subprocess.run(load, check=True, timeout=120))
            put("tracing_on", "0")
            put("trace", "")
            put("buffer_size_kb", "16384")
            put("set_event", EVENTS)
            running.start()
            time.sleep(1)
            put("tracing_on", "1")
            time.sleep(0.3)
            put("tracing_on", "0")
            with open(TRACING + "trace") as f:
                lines = f.readlines()
            running.join()
        finally:
            put("set_event", "")
            put("trace", "")
            server.terminate()
            server.wait(20)
    return lines


def hand_overs(lines):
    """Each as the times of its steps, in microseconds, and how often the executor slept in it."""
    pattern = re.compile(r"\s*(.+?)-\d+\s+\[\d+\]\s+\S+\s+([\d.]+): (\w+)(.*)")
    found, now = [], {}
    for line in lines:
        match = pattern.match(line)
        if not match:
            continue
        thread, at, event, rest = match[1], float(match[2]) * 1e6, match[3], match[4]
        client = not thread.startswith(("shard-", "log", "<idle>"))
        if thread == "log" and event == "sys_pwrite64":
            if "read" in now:
                found.append({**now, "next": at})
            now = {"write": at, "sleeps": 0}
        elif not now:
            continue
        elif event == "sched_switch":
            now["sleeps"] += "prev_comm=shard-0" in rest and "prev_state=S" in rest
        elif event == "sys_fdatasync" and "->" in rest:
            now["synced"] = at
        elif "synced" not in now:
            continue
        elif not client and event == "sys_sendto":
            now.setdefault("granted", at)
        elif client and event == "sys_recvfrom" and "granted" in now:
            now.setdefault("heard", at)
        # The former holder asks again at the same time: the last of both is the one waited for.
        elif client and event == "sys_sendto" and "heard" in now:
            now["sent"] = at
        elif not client and event == "sys_recvfrom" and "sent" in now and "-> 0xffff" not in rest:
            now["released"], now["read"] = now["sent"], at
    return found


def main():
    found = hand_overs(traced(sys.argv[1], sys.argv[2]))
    if len(found) < 100:
        sys.exit(f"only {len(found)} hand-overs were seen: is tracefs at {TRACING}, and is this root?")
    whole = statistics.median(one["next"] - one["write"] for one in found)
    print(f"{len(found)} hand-overs, median {whole:.0f} us")
    for begin, end, what in STEPS:
        took = statistics.median(one[end] - one[begin] for one in found)
        print(f"{took:6.0f} us  {100 * took / whole:3.0f} %  {what}")
    awake = sum(one["sleeps"] == 0 for one in found)
    print(f"the executor did not sleep in {100 * awake / len(found):.0f} % of them")


if __name__ == "__main__":
    main()
