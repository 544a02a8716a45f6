-- Take one binding away; an auto-delete exchange goes with its last one.
create or replace function pgbroker.unbind_queue(p_exchange text, p_queue text, p_routing_key text) returns boolean
language plpgsql as $$
declare
    v_found boolean;
begin
    delete from pgbroker.bindings where exchange = p_exchange and queue = p_queue and routing_key = p_routing_key;
    v_found := found;
    delete from pgbroker.exchanges e where e.name = p_exchange and e.auto_delete
        and not exists (select from pgbroker.bindings b where b.exchange = p_exchange);
    return v_found;
end
$$;
