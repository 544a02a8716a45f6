-- Take all bindings of a queue away, because it goes; auto-delete exchanges go with their last one.
-- Index: bindings_queue.
create or replace function pgbroker.drop_bindings(p_queue text) returns void
language plpgsql as $$
declare
    v_exchanges text[];
begin
    with gone as (delete from pgbroker.bindings b where b.queue = p_queue returning b.exchange)
    select array_agg(distinct g.exchange) into v_exchanges from gone g;
    delete from pgbroker.exchanges e where e.name = any (v_exchanges) and e.auto_delete
        and not exists (select from pgbroker.bindings b where b.exchange = e.name);
end
$$;
