"""A Dask client as levytorch uses it: tasks with retries, whose results come as they are done."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, Protocol

from levytorch.convert import shown, whole_number
from levytorch.errors import ConfigError, InputError

log = logging.getLogger("levytorch.distributed")
ONE_THREAD = {"POLARS_MAX_THREADS": "1"}  # of a worker of one thread; Dask sees to the others
Task = tuple[Callable[..., Any], tuple[Any, ...]]


class Runner(Protocol):
    """What runs tasks."""

    def share(self, value: Any) -> Any: ...

    def keep(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def run(
        self, tasks: Sequence[Task], retries: int, again: Callable[[int, BaseException], None]
    ) -> Iterator[tuple[int, Any]]: ...


class Here:
    """One task after the other, in this process."""

    def share(self, value: Any) -> Any:
        return value

    def keep(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def run(
        self, tasks: Sequence[Task], retries: int, again: Callable[[int, BaseException], None]
    ) -> Iterator[tuple[int, Any]]:
        for k, (function, arguments) in enumerate(tasks):
            for attempt in range(retries + 1):
                try:
                    result = function(*arguments)
                    break
                except Exception as error:
                    result = error
                    if attempt < retries:
                        again(k, error)
            yield k, result


class Shared:
    """A value that many tasks take, on every worker; sent again when all workers that had it are gone."""

    def __init__(self, value: Any, client: Any) -> None:
        self.value, self.client = value, client
        self.send()

    def send(self) -> None:
        self.future = self.client.scatter(self.value, broadcast=True, hash=False)


class Job:
    """Tasks on the workers of a client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def share(self, value: Any) -> Any:
        """A value that many tasks take, sent to every worker once."""
        return None if value is None else Shared(value, self.client)

    def keep(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A result that stays on the worker that computes it, for tasks that take it as an argument."""
        return self.client.submit(function, *arguments, pure=False)

    def run(
        self, tasks: Sequence[Task], retries: int, again: Callable[[int, BaseException], None]
    ) -> Iterator[tuple[int, Any]]:
        """(number, result) as tasks are done; an exception is the result where `retries` attempts more did not help.

        again: told of every attempt after the first. A result leaves the worker at once, so that a worker that dies
        takes with it only what it is working at.
        """
        from distributed import as_completed

        futures, attempts = {}, [0] * len(tasks)

        def submit(k: int) -> Any:
            function, arguments = tasks[k]
            given = [one.future if isinstance(one, Shared) else one for one in arguments]
            future = self.client.submit(function, *given, pure=False)
            futures[future.key] = k
            return future

        coming = as_completed([submit(k) for k in range(len(tasks))])
        for future in coming:
            k = futures.pop(future.key)
            try:
                result = future.result()
            except (Exception, CancelledError) as error:
                if attempts[k] < retries:
                    attempts[k] += 1
                    again(k, error)
                    for one in tasks[k][1]:
                        if isinstance(one, Shared) and one.future.status != "finished":
                            one.send()
                    coming.add(submit(k))
                    continue
                result = error
            future.release()
            yield k, result


def dask() -> Any:
    """The module `distributed` of Dask."""
    try:
        import distributed
    except ImportError:
        raise InputError(
            "Dask must be installed for files on several workers, found that it is not; pip install levytorch[dask]."
        ) from None
    return distributed


@contextmanager
def running(client: Any = None, n_workers: int | None = None) -> Iterator[Job]:
    """The job of a client; None: of a local cluster that is there as long as the block."""
    Client = dask().Client
    if client is not None:
        if not isinstance(client, Client) or client.asynchronous:
            raise InputError(
                f"client must be a dask.distributed.Client that is not asynchronous, found {shown(client)}; pass one, "
                "or None for a local cluster."
            )
        yield Job(client)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = cores if n_workers is None else whole_number("n_workers", n_workers, 1, 4096)
    options = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": ":0"}
    with dask().LocalCluster(**options, env=ONE_THREAD) as cluster, Client(cluster) as own:
        yield Job(own)


@contextmanager
def cluster_of(settings: Any) -> Iterator[Job]:
    """The job of the `cluster` group of a configuration: {name: local, n_workers} or {name: address, address}."""
    Client, address = dask().Client, settings.get("address")
    logging.getLogger("distributed").setLevel(logging.WARNING)  # not every connection of a worker
    if address is None:
        with running(None, settings.get("n_workers")) as job:
            log.info(f"Dask dashboard: {job.client.dashboard_link}")
            yield job
        return
    try:
        client = Client(str(address), timeout="30s")
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"cluster.address must be that of a Dask scheduler, found {address!r} "
            f"({' '.join(str(error).split())[:120]}); start one with: dask scheduler."
        ) from None
    with client:
        log.info(f"Dask dashboard: {client.dashboard_link}")
        yield Job(client)
