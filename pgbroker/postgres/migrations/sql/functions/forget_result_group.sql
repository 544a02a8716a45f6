-- Forget a group, not the results in it. Returns: whether there was one. Index: primary key.
create or replace function pgbroker.forget_result_group(p_group_id text) returns boolean
language plpgsql as $$
begin
    delete from pgbroker.result_groups g where g.group_id = p_group_id;
    return found;
end
$$;
