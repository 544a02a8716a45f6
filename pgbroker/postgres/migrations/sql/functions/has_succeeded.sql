-- Whether a task has succeeded though its worker never said so: its result was stored in this schema since the job was
-- claimed, and the worker was lost, or stopped, before it could end the job.
-- Not for members of a group: what follows their result (a chord's count) may be missing, so they run again.
-- Index: primary key of results.
create or replace function pgbroker.has_succeeded(p_job pgbroker.jobs_live) returns boolean
language plpgsql as $$
begin
    if p_job.task_name is null or p_job.headers is null or not exists (
        select from pgbroker.results r
        where r.task_id = p_job.task_id and r.status = 'SUCCESS' and r.stored_at >= p_job.claimed_at)
    then
        return false;
    end if;
    return p_job.headers::json ->> 'group' is null;
end
$$;
