-- End those of these waiting jobs whose tasks were revoked, as CANCELLED.
--   p_ids  jobs whose rows the caller has locked
-- Returns: the ids of the others.
-- Index: primary keys.
create or replace function pgbroker.end_revoked(p_ids bigint[]) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_revoked bigint[];
begin
    v_revoked := array(
        select j.job_id from pgbroker.jobs_live j
        where j.job_id = any (p_ids)
            and (exists (select from pgbroker.revoked r where r.task_id = j.task_id and r.until > clock_timestamp())
                or exists (select from pgbroker.revoked_stamps) and pgbroker.bears_revoked_stamp(j.headers, j.properties)));
    if v_revoked = '{}' then
        return p_ids;
    end if;
    perform pgbroker.cancel(i, 'REVOKED', 'revoked') from unnest(v_revoked) i;
    return array(select i from unnest(p_ids) with ordinality a (i, place) where i <> all (v_revoked) order by place);
end
$$;
