-- The partition of job_history for a time: the number of its day (UTC) modulo the 32 of the ring.
create or replace function pgbroker.history_slot(p_at timestamptz) returns smallint
language sql immutable parallel safe as $$
    select (floor(extract(epoch from p_at) / 86400)::bigint % 32)::smallint
$$;
