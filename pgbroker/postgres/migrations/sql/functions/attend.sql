-- Say that a process is alive: its consumers, and the transient queues that it keeps.
--   p_tags, p_queues  parallel arrays: its consumers
--   p_kept            transient queues of its own that it does not consume from
--   p_seconds         how long this holds
-- Writes only unlogged tables: no WAL.
create or replace function pgbroker.attend(p_worker text, p_tags text[], p_queues text[], p_kept text[], p_seconds double precision)
returns void
language plpgsql as $$
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
end
$$;
