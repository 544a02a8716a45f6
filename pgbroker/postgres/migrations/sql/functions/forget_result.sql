-- Remove the stored state of a task; of a task id that leads to another's result, no more than that it does.
-- Returns: whether there was anything. Index: primary keys.
create or replace function pgbroker.forget_result(p_task_id text) returns boolean
language plpgsql as $$
declare
    v_was_stored boolean;
begin
    delete from pgbroker.results r where r.task_id = p_task_id;
    v_was_stored := found;
    delete from pgbroker.aliases a where a.task_id = p_task_id;
    return v_was_stored or found;
end
$$;
