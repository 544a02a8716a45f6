-- Register a process for the results of tasks that have not ended; see await_results().
-- It will be notified with the id that it asks for, or with nothing if that is long: then it looks for all it waits for.
-- An alias is registered for each id on its way (see follow_alias), so whoever stores a result need not know of aliases.
-- Writes an unlogged table only: no WAL. Index: primary keys of waiters, results and aliases.
create or replace function pgbroker.register_waiters(
    p_task_ids text[], p_every_state boolean[], p_channel text, p_seconds double precision)
returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into pgbroker.waiters as w (task_id, channel, payload, until, every_state)
    select u.id, p_channel, case when octet_length(a.task_id) < 200 then a.task_id else '' end,
        v_now + make_interval(secs => p_seconds), bool_or(a.every_state)
    from unnest(p_task_ids, p_every_state) a (task_id, every_state)
    cross join lateral (select case when exists (select from pgbroker.aliases l where l.task_id = a.task_id)
        then pgbroker.follow_alias(a.task_id) else array[a.task_id] end) f (way)
    cross join lateral unnest(f.way) u (id)
    where not exists (
        select from pgbroker.results r
        where r.task_id = f.way[cardinality(f.way)] and r.status in ('SUCCESS', 'FAILURE', 'REVOKED')
            and (r.expires_at is null or r.expires_at > v_now))
    group by 1, 3
    order by 1, 3
    on conflict (task_id, channel, payload) do update set until = excluded.until, every_state = excluded.every_state;
end
$$;
