-- Make a queue unless it is there. Declaring a transient queue again counts as use and puts its expiry off.
--   p_transient        exclusive, auto-delete or x-expires: its messages are no jobs
--   p_owner            for an exclusive queue, the process that owns it: the queue goes with it. A second process that
--                      declares it is told of the other consumer and takes the queue over, since a worker that was
--                      killed must be able to start again under its name at once
--   p_expires_seconds  a transient queue that nobody uses for so long goes away; null: no such limit
--   p_ttl_seconds, p_max_length   x-message-ttl and x-max-length, for transient queues
-- Returns: the kind of the queue that is there now, 'job' or 'transient'.
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
        if p_owner is distinct from v_row.owner and p_owner is not null or v_row.expires_seconds is not null then
            update pgbroker.transient_queues
            set owner = coalesce(p_owner, owner),
                lives_until = greatest(lives_until, v_now + make_interval(secs => expires_seconds))
            where name = p_queue;
        end if;
        return 'transient';
    end if;
    if exists (select from pgbroker.queues where name = p_queue) then
        return 'job';
    end if;
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
