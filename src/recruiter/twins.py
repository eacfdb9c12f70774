"""The async face: every call that talks to MongoDB has a twin with an `a` in front, for event loops.

There is one implementation. The twin runs it in a thread, so the loop goes on; callers that enqueue at the same time
still share one write. Cancelling the awaiting task gives up waiting, not what is already on its way.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, update_wrapper
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_threads: ThreadPoolExecutor | None = None


def in_a_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Runs it without blocking the loop. More threads than asyncio has by itself: these only wait for MongoDB."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(64, thread_name_prefix="recruiter")
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(_threads, partial(context.run, call, *args, **kwargs))


def in_its_own_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Likewise, for what may take long: it takes none of the others' threads. Cancelling does not stop it."""
    answer: Future[R] = Future()
    answer.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call, *args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="recruiter", daemon=True).start()
    return asyncio.wrap_future(answer)


def twin(call: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same call for `await`: `afind = twin(find)`."""

    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        return await in_a_thread(call, *args, **kwargs)

    update_wrapper(awaited, call)
    awaited.__name__ = f"a{call.__name__}"
    awaited.__qualname__ = call.__qualname__.removesuffix(call.__name__) + awaited.__name__
    awaited.__doc__ = f"Like `{call.__name__}`, without blocking the event loop."
    return awaited
