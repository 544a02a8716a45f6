-- Wake one worker that sleeps on a queue, if any does. Call it in the same statement as an autocommitted insert.
--   p_queue  the queue that got a message
-- NOTIFY takes a cluster-wide lock across the commit's fsync and (up to PostgreSQL 18) signals every listener of the
-- database, so it is sent only when somebody sleeps, and to one of them alone.
-- Locks: one row of sleepers, skipping those that another publisher is taking. Only the newest sleepers are looked at
-- (index sleepers_queue, backwards): rows of killed workers, and dead rows that an old snapshot keeps, lie below.
create or replace function pgbroker.wake(p_queue text) returns void
language plpgsql as $$
declare
    v_channel text;
begin
    -- the usual case under load: nobody sleeps
    if not exists (select from pgbroker.sleepers n where n.queue = p_queue) then
        return;
    end if;
    delete from pgbroker.sleepers s
    where (s.channel, s.queue) in (
        select n.channel, n.queue from pgbroker.sleepers n
        where n.queue = p_queue and n.until > clock_timestamp()
        order by n.sleeper_id desc limit 1 for update skip locked)
    returning s.channel into v_channel;
    if v_channel is not null then
        perform pg_notify(v_channel, '');
    end if;
end
$$;
