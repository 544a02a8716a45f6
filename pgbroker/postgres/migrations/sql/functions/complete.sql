-- End a job well, by its holder's name.
--   p_claim   also checked, if given
--   p_result  JSON text that get() returns while history lasts
-- Returns: whether the worker (and claim) held the job.
create or replace function pgbroker.complete(p_job_id bigint, p_worker text, p_result text default null, p_claim bigint default null)
returns boolean
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
begin
    delete from pgbroker.jobs_live j
    where j.job_id = p_job_id and j.status = 'RUNNING' and j.worker = p_worker and (p_claim is null or j.claim = p_claim)
    returning j.* into v_job;
    if not found then
        return false;
    end if;
    perform pgbroker.record_history(v_job, 'DONE', 'SUCCESS', null, p_result);
    return true;
end
$$;
