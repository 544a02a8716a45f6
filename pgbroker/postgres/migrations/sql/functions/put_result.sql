-- Write the state of a task. A SUCCESS that has not expired is never overwritten: a run that was thought lost may end
-- after the one that took its place.
--   p_status   Celery's state
--   p_meta     the result as Celery describes it, encoded by the application's result serializer
--   p_seconds  how long it is kept, by the server's clock; null or 0: for ever
--   p_is_stale whoever writes has lost its claim on the job: no end that was written before is overwritten
-- Returns: whether it was written.
-- May run in a caller's transaction; call wake_waiters() after the commit (see store_result).
-- Locks: the row. Index: primary key.
create or replace function pgbroker.put_result(
    p_task_id text, p_status text, p_meta bytea, p_seconds double precision, p_is_stale boolean default false)
returns boolean
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into pgbroker.results as r (task_id, status, meta, stored_at, expires_at)
    values (p_task_id, p_status, p_meta, v_now, v_now + make_interval(secs => nullif(p_seconds, 0)))
    on conflict (task_id) do update
        set status = excluded.status, meta = excluded.meta, stored_at = excluded.stored_at, expires_at = excluded.expires_at
        where r.status <> 'SUCCESS' and not (p_is_stale and r.status in ('FAILURE', 'REVOKED')) or r.expires_at <= v_now;
    return found;
end
$$;
