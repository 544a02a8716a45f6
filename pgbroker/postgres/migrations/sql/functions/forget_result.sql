-- Remove the stored state of a task. Returns: whether there was one. Index: primary key.
create or replace function pgbroker.forget_result(p_task_id text) returns boolean
language plpgsql as $$
begin
    delete from pgbroker.results r where r.task_id = p_task_id;
    return found;
end
$$;
