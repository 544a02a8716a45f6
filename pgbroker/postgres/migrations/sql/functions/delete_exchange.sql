-- Remove an exchange with its bindings.
--   p_if_unused  only if nothing is bound to it
-- Returns: whether it was removed.
create or replace function pgbroker.delete_exchange(p_exchange text, p_if_unused boolean default false) returns boolean
language plpgsql as $$
begin
    if p_if_unused and exists (select from pgbroker.bindings where exchange = p_exchange) then
        return false;
    end if;
    delete from pgbroker.bindings where exchange = p_exchange;
    delete from pgbroker.exchanges where name = p_exchange;
    return found;
end
$$;
