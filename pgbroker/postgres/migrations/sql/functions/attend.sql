-- Say that a process is alive: its consumers, and the transient queues that it keeps.
--   p_tags, p_queues  parallel arrays: its consumers
--   p_kept            transient queues of its own that it does not consume from
--   p_seconds         how long this holds
-- Returns: those of these transient queues that are there, and how many bindings each has. Whoever misses one was not heard
-- of for too long, so that it was swept away: he declares it again.
-- Writes only unlogged tables: no WAL. Locks: the rows of his own; the sweep leaves those alone.
create or replace function pgbroker.attend(p_worker text, p_tags text[], p_queues text[], p_kept text[], p_seconds double precision)
returns table (queue_name text, bindings bigint)
language plpgsql rows 1 as $$
#variable_conflict use_column
declare
    v_until timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into pgbroker.consumers (worker, tag, queue, lives_until)
    select p_worker, c.tag, c.queue, v_until from unnest(p_tags, p_queues) c (tag, queue)
    on conflict (worker, tag) do update set lives_until = excluded.lives_until, queue = excluded.queue;
    update pgbroker.transient_queues q
    set lives_until = v_until + make_interval(secs => coalesce(q.expires_seconds, 0))
    where q.name = any (p_queues || p_kept) and (q.expires_seconds is not null or q.auto_delete or q.owner is not null);
    -- a statement of its own: if the update waited for a sweep, this one sees what that has left
    return query
        select q.name, (select count(*) from pgbroker.bindings b where b.queue = q.name)
        from pgbroker.transient_queues q where q.name = any (p_queues || p_kept);
end
$$;
