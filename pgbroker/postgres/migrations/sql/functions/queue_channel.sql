-- The NOTIFY channel shared by all who wait for messages of a queue. Derived by a hash: channel names are cut at 63
-- bytes, queue names are not. The schema is part of it, so that two brokers in one database do not wake each other.
create or replace function pgbroker.queue_channel(p_queue text) returns text
language sql immutable parallel safe as $$
    select 'pgbq_' || md5('pgbroker.' || p_queue)
$$;
