-- Make a queue unless it is there. Declaring a transient queue again counts as use and puts its expiry off.
--   p_transient        exclusive, auto-delete or x-expires: its messages are no jobs
--   p_owner            for an exclusive queue, the process that owns it; others are refused
--   p_expires_seconds  a transient queue that nobody uses for so long goes away; null: no such limit
--   p_ttl_seconds, p_max_length   x-message-ttl and x-max-length, for transient queues
-- Returns: the kind of the queue that is there now, 'job' or 'transient'; 'locked' if it is somebody else's own.
-- Reads before it writes, so that a declare of what is there costs no row and no commit.
create or replace function pgbroker.declare_queue(
    p_queue text, p_arguments text default null, p_transient boolean default false, p_owner text default null,
    p_auto_delete boolean default false, p_expires_seconds double precision default null,
    p_ttl_seconds double precision default null, p_max_length integer default null)
returns text
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_row pgbroker.transient_queues;
begin
    select * into v_row from pgbroker.transient_queues where name = p_queue;
    if found then
        if v_row.lives_until < v_now and v_row.owner is distinct from p_owner then
            perform pgbroker.delete_queue(p_queue);
        elsif v_row.owner is not null and v_row.owner is distinct from p_owner then
            return 'locked';
        else
            update pgbroker.transient_queues set lives_until = greatest(lives_until, v_now + make_interval(secs => expires_seconds))
            where name = p_queue and expires_seconds is not null;
            return 'transient';
        end if;
    end if;
    if exists (select from pgbroker.queues where name = p_queue) then
        return 'job';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    if not p_transient then
        insert into pgbroker.queues (name, arguments) values (p_queue, p_arguments) on conflict do nothing;
        return 'job';
    end if;
    insert into pgbroker.transient_queues (name, arguments, owner, auto_delete, expires_seconds, ttl_seconds, max_length, lives_until)
    values (p_queue, p_arguments, p_owner, p_auto_delete, p_expires_seconds, p_ttl_seconds, p_max_length,
        v_now + make_interval(secs => p_expires_seconds))
    on conflict do nothing;
    return 'transient';
end
$$;
