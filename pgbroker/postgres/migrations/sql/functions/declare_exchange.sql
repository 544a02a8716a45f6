-- Make an exchange unless it is there.
-- Returns: the type of the exchange that is there now.
create or replace function pgbroker.declare_exchange(
    p_exchange text, p_type text, p_durable boolean default true, p_auto_delete boolean default false, p_arguments text default null)
returns text
language plpgsql as $$
declare
    v_type text;
begin
    -- a loop, because somebody else may delete it between the insert that met it and the look-up
    loop
        select type into v_type from pgbroker.exchanges where name = p_exchange;
        if found then
            return v_type;
        end if;
        perform set_config('synchronous_commit', 'off', true);
        insert into pgbroker.exchanges (name, type, durable, auto_delete, arguments)
        values (p_exchange, p_type, p_durable, p_auto_delete, p_arguments) on conflict do nothing;
        if found then
            return p_type;
        end if;
    end loop;
end
$$;
