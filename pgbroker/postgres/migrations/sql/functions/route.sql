-- The queues that a message goes to, each once, and what each one's messages are ('job' or 'transient').
--   p_headers  the message's headers, a JSON object; only a headers exchange looks at them
-- The default exchange ('') leads to the queue of the routing key's name, which is made as a job queue if it is unknown.
-- A binding whose queue is gone (an unlogged one after a server crash) leads nowhere.
create or replace function pgbroker.route(p_exchange text, p_routing_key text, p_headers text default null)
returns table (queue_name text, kind text)
language plpgsql rows 1 as $$
declare
    v_type text;
begin
    if p_exchange = '' then
        queue_name := p_routing_key;
        kind := pgbroker.queue_kind(p_routing_key);
        if kind is null then
            kind := pgbroker.declare_queue(p_routing_key);
        end if;
        return next;
        return;
    end if;
    select type into v_type from pgbroker.exchanges where name = p_exchange;
    return query
        select f.queue, f.found_kind from (
            select distinct b.queue, pgbroker.queue_kind(b.queue) as found_kind from pgbroker.bindings b
            where b.exchange = p_exchange
                and case v_type when 'fanout' then true when 'topic' then p_routing_key ~ b.pattern
                    when 'headers' then pgbroker.matches_headers(b.arguments, p_headers)
                    else b.routing_key = p_routing_key end) f
        where f.found_kind is not null
        order by 1;
end
$$;
