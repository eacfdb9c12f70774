"""A producer that forks while its threads enqueue and wait, as gunicorn with --preload and uWSGI do. Run as a script;
prints what the children say."""

import os
import sys
import threading
import warnings

from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def add(a: int, b: int) -> int:
    return a + b


def enqueue_for_ever() -> None:
    while True:
        add.enqueue(1, 2)


def in_a_child(number: int) -> None:
    job = add.enqueue(number, 1)
    add.job(number, 2).with_id(f"child {number}").in_background().execute()
    recruiter.run(add, wait=20)
    print(f"child {number} stored {recruiter.find(job.id).task}", flush=True)
    print(f"child {number} sees {ended.result(timeout=20)}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    ended = add.job(40, 2).in_group("first").in_background().execute()
    waits = recruiter.handle(add.job(1, 2).schedule_in("1 hour").execute().id)
    threading.Thread(target=waits.result, daemon=True).start()
    for _ in range(4):
        threading.Thread(target=enqueue_for_ever, daemon=True).start()
    children = []
    for number in range(int(sys.argv[1])):
        pid = os.fork()
        if not pid:
            try:
                in_a_child(number)
            finally:
                sys.stdout.flush()
                os._exit(0)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    add.enqueue(5, 5)
    print(f"all ended {codes}", flush=True)
    os._exit(0)
