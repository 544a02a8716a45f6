-- Bind a queue to an exchange.
--   p_pattern    for a topic exchange: the routing key as an anchored regular expression, made by the caller
--   p_arguments  a JSON object with its keys in order; null: none
-- Returns: 'bound', or 'no exchange' or 'no queue' where one of the two is unknown.
-- Whoever remembers that nothing is bound to this exchange is told of a new binding.
create or replace function pgbroker.bind_queue(
    p_exchange text, p_queue text, p_routing_key text, p_pattern text default null, p_arguments text default null)
returns text
language plpgsql as $$
begin
    p_arguments := coalesce(p_arguments, '{}');
    if exists (select from pgbroker.bindings b where b.exchange = p_exchange and b.routing_key = p_routing_key
            and b.queue = p_queue and b.arguments = p_arguments) then
        return 'bound';
    end if;
    if not exists (select from pgbroker.exchanges where name = p_exchange) then
        return 'no exchange';
    end if;
    if pgbroker.queue_kind(p_queue) is null then
        return 'no queue';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pgbroker.bindings (exchange, queue, routing_key, pattern, arguments)
    values (p_exchange, p_queue, p_routing_key, p_pattern, p_arguments) on conflict do nothing;
    if found then
        perform pg_notify(pgbroker.topology_channel(), '');
    end if;
    return 'bound';
end
$$;
