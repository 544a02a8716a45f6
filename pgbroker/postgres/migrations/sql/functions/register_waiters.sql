-- Register a process for the results of tasks that have not ended; see await_results().
-- Writes an unlogged table only: no WAL. Index: primary keys of waiters and results.
create or replace function pgbroker.register_waiters(
    p_task_ids text[], p_every_state boolean[], p_channel text, p_seconds double precision)
returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into pgbroker.waiters as w (task_id, channel, until, every_state)
    select a.task_id, p_channel, v_now + make_interval(secs => p_seconds), bool_or(a.every_state)
    from unnest(p_task_ids, p_every_state) a (task_id, every_state)
    where not exists (
        select from pgbroker.results r
        where r.task_id = a.task_id and r.status in ('SUCCESS', 'FAILURE', 'REVOKED')
            and (r.expires_at is null or r.expires_at > v_now))
    group by a.task_id
    order by a.task_id
    on conflict (task_id, channel) do update set until = excluded.until, every_state = excluded.every_state;
end
$$;
