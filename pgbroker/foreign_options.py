"""Options of other transports and of Celery that may stand in the transport options without meaning anything here.

The names come from kombu 5.7 (`kombu/transport/*.py`, `kombu/connection.py`) and Celery 5.7 (`celery/backends`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)

_RETRY_AND_MANAGER = """
max_retries interval_start interval_step interval_max connect_retries_timeout errback callback retry_errors
on_revive retry_policy manager_hostname manager_port manager_userid manager_password
"""
#: Read by kombu or Celery themselves, whichever the transport: retry policies and the AMQP manager's address.
PASSED_BY = frozenset(_RETRY_AND_MANAGER.split())

_LEASE = "use lease_seconds: how long a claimed job stays claimed without renewal"
_POLL = "use poll_interval: upper bound of the fallback poll"
_SCHEMA = "use schema to keep applications apart in one database"
_NOTIFY = "use notify"
_KEEPALIVE = "use libpq's keepalives, keepalives_idle, keepalives_interval, tcp_user_timeout"
_TLS = "use broker_use_ssl or libpq's sslmode, sslrootcert, sslcert, sslkey"
_REAP = "use reap_interval: how often expired leases are looked for"
_PRIORITY = "priorities 0 to 9 always work; use priority_order for the direction"

_WITHOUT_EQUAL = """
ack_emulation ack_modify_batch_size backoff_policy backoff_tasks body_encoding broadcast_collection
calc_queue_size capped_queue_size client-config control_folder credential_provider data_folder_in data_folder_out
expiration_seconds fetch_message_attributes frame_max heartbeat kafka_admin_config kafka_common_config
kafka_consumer_config kafka_producer_config login_method message_tablename messages_collection
min_other_sentinels num_partitions predefined_exchanges predefined_queues processed_folder queue_tablename
queue_tags queues_collection read_timeout reauth_check_interval region regioninfo replication_factor
retry_backoff_factor retry_backoff_max retry_on_timeout retry_timeout_seconds retry_total routing_collection
sasl_mechanism security_protocol sentinel_fanout_compat sentinel_kwargs socket_settings sqs-creation-attributes
sqs_base64_encoding store_processed sts_role_arn sts_token_buffer_time sts_token_timeout supports_fanout
topic_config ttl unacked_index_key unacked_key unacked_mutex_expire unacked_mutex_key write_timeout
"""

#: Options of other transports, and what to use here instead ("" where there is nothing to use).
IGNORED: Mapping[str, str] = {
    "visibility_timeout": _LEASE,
    "peek_lock_seconds": _LEASE,
    "ack_deadline_seconds": _LEASE,
    "use_lock_renewal": "leases are always renewed; see lease_seconds",
    "max_lock_renewal_duration": "leases are always renewed; see lease_seconds",
    "polling_interval": _POLL,
    "poll_interval_ms": _POLL,
    "wait_time_seconds": _POLL,
    "max_poll_seconds": _POLL,
    "unacked_restore_interval": _REAP,
    "unacked_restore_throttle": _REAP,
    "unacked_restore_limit": _REAP,
    "priority_steps": _PRIORITY,
    "sep": _PRIORITY,
    "queue_order_strategy": "use queue_order (and priority_order for priorities)",
    "fifo_mode": "use queue_order",
    "global_keyprefix": _SCHEMA,
    "queue_name_prefix": _SCHEMA,
    "fanout_prefix": _SCHEMA,
    "fanout_patterns": "bindings decide which queues get an event",
    "use_notify": _NOTIFY,
    "notify_throttle_interval_ms": _NOTIFY,
    "init_extension": "use auto_migrate: create or upgrade the schema on first use",
    "conn_string": "put the connection into the URL",
    "confirm_publish": "a publish always waits until it is stored",
    "max_connections": "use broker_pool_limit",
    "pool_size": "use broker_pool_limit",
    "pool_timeout": "use broker_pool_acquire_timeout",
    "client_name": "use libpq's application_name",
    "client_properties": "use libpq's application_name",
    "socket_timeout": "use libpq's tcp_user_timeout",
    "socket_connect_timeout": "use libpq's connect_timeout",
    "connection_wait_time_seconds": "use libpq's connect_timeout",
    "socket_keepalive": _KEEPALIVE,
    "socket_keepalive_options": _KEEPALIVE,
    "health_check_interval": _KEEPALIVE,
    "uamqp_keep_alive_interval": _KEEPALIVE,
    "ssl": _TLS,
    "is_secure": _TLS,
    "secure": _TLS,
    "master_name": "name several hosts in the URL and target_session_attrs",
    "default_hostname": "put the host into the URL",
    "default_port": "put the port into the URL",
    "default_database": "put the database into the URL",
    "deadletter_queue": "jobs that failed for good are kept as DEAD; see max_attempts",
    "result_chord_ordered": "chord results are always in order",
    "enable_exactly_once_delivery": "a job is claimed by one worker at a time; see strict_start",
    "bulk_max_messages": "use worker_prefetch_multiplier",
} | dict.fromkeys(_WITHOUT_EQUAL.split(), "")

_warned: set[str] = set()


def is_foreign(name: str) -> bool:
    """Tell whether an option means nothing here but may stand; logs one warning per process where it is ignored.

    Args:
        name: name of the option.

    Returns:
        `True` to skip it, `False` if the name is unknown.
    """
    if name in PASSED_BY:
        return True
    hint = IGNORED.get(name)
    if hint is None:
        return False
    if name not in _warned:
        _warned.add(name)
        logger.warning(
            "transport option %r belongs to another transport and is ignored%s", name, f": {hint}" if hint else ""
        )
    return True
