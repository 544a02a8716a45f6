"""Comparison of pgbroker with RabbitMQ, Redis and Celery's own ceiling: ``python -m benchmarks``.

Method
    * **consume**: the tasks are published first. Then a worker starts on an empty queue, runs a few warm-up
      tasks from a second queue and is told, over a pipe, to leave it and consume the loaded one. The figure is
      ``(tasks - 1) / (last - first)`` over the instants at which the tasks ran, so neither the start of the worker nor
      the warm-up nor the switch counts. The tasks do nothing, results are ignored, messages are persistent.
    * **publish**: one process calls ``apply_async`` again and again; the figure is calls per second. RabbitMQ is
      measured twice, because without publisher confirms a call returns before the broker has anything.
    * Every task writes one 16-byte record (run, number, ``CLOCK_MONOTONIC``) with ``O_APPEND``, the same for every
      broker. That costs about 3 µs in the pool child, where the main process spends 200 to 400 µs on a task.
    * A figure counts only if every task ran exactly once (consume) or every message is in the queue (publish) and
      nothing is left in the queue afterwards. Otherwise it is shown as wrong, with the reason.
    * The brokers take turns in every round (A, B, C, A, B, C, ...), so that a slow minute of the machine hits all of
      them. Medians are compared.
    * ``CPU µs`` is the CPU time per task of the bottleneck process: the worker's main process (kernel included, pool
      and server not), or the publisher. It stays meaningful on a machine that does other things besides.
    * Remote control, mingle, gossip and heartbeats are off for all.

The null transport
    ``null://`` makes its messages inside the worker and throws acknowledgements away. Its figure is what Celery
    itself can do with a broker that costs nothing; no broker can be faster with the same worker.

Limits
    Everything runs on one machine: broker, worker and database share its cores, and there is no network. The servers
    are taken as they are configured; the facts above the tables say how durable that is. A Redis without append-only
    file and a RabbitMQ without confirms promise less than Postgres with ``fsync`` on. Tasks that do nothing are the
    worst case for a broker: with real work in the tasks the differences shrink.

Adding to it
    A measurement is one module with a :class:`~benchmarks.measurement.Measurement`, entered in
    ``benchmarks/registry.py``. A broker is one entry in ``benchmarks/brokers.py``.
"""
