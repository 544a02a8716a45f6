-- Bind a queue to an exchange.
--   p_pattern  for a topic exchange: the routing key as an anchored regular expression, made by the caller
-- Returns: whether the binding is new. Then whoever remembers that nothing is bound to this exchange is told.
create or replace function pgbroker.bind_queue(
    p_exchange text, p_queue text, p_routing_key text, p_pattern text default null, p_arguments text default null)
returns boolean
language plpgsql as $$
begin
    if exists (select from pgbroker.bindings
            where exchange = p_exchange and routing_key = p_routing_key and queue = p_queue) then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pgbroker.bindings (exchange, queue, routing_key, pattern, arguments)
    values (p_exchange, p_queue, p_routing_key, p_pattern, p_arguments) on conflict do nothing;
    if found then
        perform pg_notify(pgbroker.topology_channel(), '');
        return true;
    end if;
    return false;
end
$$;
