-- Take one binding away; an auto-delete exchange goes with its last one.
--   p_arguments  those of the binding, a JSON object with its keys in order; null: none
-- Returns: whether there was such a binding.
create or replace function pgbroker.unbind_queue(
    p_exchange text, p_queue text, p_routing_key text, p_arguments text default null)
returns boolean
language plpgsql as $$
declare
    v_found boolean;
begin
    delete from pgbroker.bindings b where b.exchange = p_exchange and b.queue = p_queue and b.routing_key = p_routing_key
        and b.arguments = coalesce(p_arguments, '{}');
    v_found := found;
    delete from pgbroker.exchanges e where e.name = p_exchange and e.auto_delete
        and not exists (select from pgbroker.bindings b where b.exchange = p_exchange);
    return v_found;
end
$$;
