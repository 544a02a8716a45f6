-- End waiting jobs whose tasks bear a revoked stamp, as CANCELLED, in the order of their ids.
--   p_after  the last_id of the call before; 0 to begin
--   p_last   no job after this one: what is published after the revoke ends at its publish
--   p_limit  how many jobs are looked at
-- Returns: how many were ended, and the last job that was looked at; last_id is null after the last one.
-- Locks: the rows that are ended. Index: primary key.
create or replace function pgbroker.cancel_stamped(
    p_after bigint, p_last bigint, p_limit integer default 5000, out cancelled integer, out last_id bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_job record;
    v_seen integer := 0;
    v_ids bigint[] := '{}';
begin
    for v_job in
        select j.job_id, j.status = 'PENDING' and pgbroker.bears_revoked_stamp(j.headers, j.properties) as is_revoked
        from pgbroker.jobs_live j where j.job_id > p_after and j.job_id <= p_last order by j.job_id limit p_limit
    loop
        v_seen := v_seen + 1;
        last_id := v_job.job_id;
        if v_job.is_revoked then
            v_ids := v_ids || v_job.job_id;
        end if;
    end loop;
    if v_seen < p_limit then
        last_id := null;
    end if;
    select count(pgbroker.cancel(i, 'REVOKED', 'revoked by a stamped header')) into cancelled from unnest(v_ids) i;
end
$$;
