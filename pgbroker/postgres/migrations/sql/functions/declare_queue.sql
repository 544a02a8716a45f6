-- Make a queue unless it is there. Declaring a transient queue again counts as use and puts its expiry off.
--   p_arguments        as they were given, a JSON object with its keys in order. Where they differ from those that are
--                      there, the last ones hold (a publish may have made the queue without any); null leaves them
--   p_transient        exclusive, auto-delete or x-expires: its messages are no jobs
--   p_owner            for an exclusive queue, the process that owns it: the queue goes with it. A second process that
--                      declares it is told of the other consumer and takes the queue over, since a worker that was
--                      killed must be able to start again under its name at once
--   p_expires_seconds  a transient queue that nobody uses for so long goes away; null: no such limit
--   p_ttl_seconds, p_max_priority, p_dead_letter_exchange, p_dead_letter_key   read out of the arguments
--   p_max_length       x-max-length, for transient queues
-- Returns: the kind of the queue that is there now, 'job' or 'transient'.
-- Reads before it writes, so that a declare of what is there costs no row and no commit.
create or replace function pgbroker.declare_queue(
    p_queue text, p_arguments text default null, p_transient boolean default false, p_owner text default null,
    p_auto_delete boolean default false, p_expires_seconds double precision default null,
    p_ttl_seconds double precision default null, p_max_length integer default null, p_max_priority integer default null,
    p_dead_letter_exchange text default null, p_dead_letter_key text default null)
returns text
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_row pgbroker.transient_queues;
    v_arguments text;
begin
    select * into v_row from pgbroker.transient_queues where name = p_queue;
    if found and v_row.lives_until < v_now + interval '10 seconds' then
        -- about to be swept away, or being swept at this moment: then it is gone after the wait
        update pgbroker.transient_queues
        set lives_until = greatest(lives_until, v_now + make_interval(secs => coalesce(expires_seconds, 60)))
        where name = p_queue returning * into v_row;
    end if;
    if found then
        if p_owner is distinct from v_row.owner and p_owner is not null or v_row.expires_seconds is not null then
            update pgbroker.transient_queues
            set owner = coalesce(p_owner, owner),
                lives_until = greatest(lives_until, v_now + make_interval(secs => expires_seconds))
            where name = p_queue;
        end if;
        if p_transient and p_arguments is distinct from v_row.arguments and p_arguments is not null then
            update pgbroker.transient_queues
            set arguments = p_arguments, expires_seconds = p_expires_seconds, ttl_seconds = p_ttl_seconds,
                max_length = p_max_length, max_priority = p_max_priority,
                dead_letter_exchange = p_dead_letter_exchange, dead_letter_key = p_dead_letter_key,
                lives_until = v_now + make_interval(secs => p_expires_seconds)
            where name = p_queue;
        end if;
        return 'transient';
    end if;
    select arguments into v_arguments from pgbroker.queues where name = p_queue;
    if found then
        if not p_transient and p_arguments is distinct from v_arguments and p_arguments is not null then
            update pgbroker.queues
            set arguments = p_arguments, ttl_seconds = p_ttl_seconds, max_priority = p_max_priority,
                dead_letter_exchange = p_dead_letter_exchange, dead_letter_key = p_dead_letter_key
            where name = p_queue;
        end if;
        return 'job';
    end if;
    if not p_transient then
        insert into pgbroker.queues (name, arguments, ttl_seconds, max_priority, dead_letter_exchange, dead_letter_key)
        values (p_queue, p_arguments, p_ttl_seconds, p_max_priority, p_dead_letter_exchange, p_dead_letter_key)
        on conflict do nothing;
        return 'job';
    end if;
    insert into pgbroker.transient_queues (name, arguments, owner, auto_delete, expires_seconds, ttl_seconds, max_length,
        max_priority, dead_letter_exchange, dead_letter_key, lives_until)
    values (p_queue, p_arguments, p_owner, p_auto_delete, p_expires_seconds, p_ttl_seconds, p_max_length,
        p_max_priority, p_dead_letter_exchange, p_dead_letter_key, v_now + make_interval(secs => p_expires_seconds))
    on conflict do nothing;
    return 'transient';
end
$$;
