-- Remove what dead processes left behind: consumers, sleepers and waiters whose time is over, transient queues that nobody
-- uses, expired messages, and bindings to queues that are gone. One sweeper at a time; the others return at once.
-- Returns: how many transient queues went away.
-- Locks: their rows before it looks at them once more, skipping those that somebody is attending to or declaring: whoever
-- has put off the end of his queue keeps it, and whoever comes too late finds none and makes it again.
create or replace function pgbroker.sweep_transient() returns integer
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_names text[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.sweep_transient', 0)) then
        return 0;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    delete from pgbroker.consumers where lives_until < v_now;
    delete from pgbroker.sleepers where until < v_now;
    delete from pgbroker.waiters where until < v_now;
    v_names := array(select q.name from pgbroker.transient_queues q where q.lives_until < v_now for update skip locked);
    perform pgbroker.delete_queue(n) from unnest(v_names) n;
    perform pgbroker.expire_mail(1000);
    delete from pgbroker.mailbox m where m.expires_at < v_now
        or not exists (select from pgbroker.transient_queues q where q.name = m.queue);
    perform pgbroker.drop_bindings(b.queue) from pgbroker.bindings b where pgbroker.queue_kind(b.queue) is null;
    return cardinality(v_names);
end
$$;
