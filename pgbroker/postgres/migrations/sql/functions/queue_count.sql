-- Cheap counts of one queue for a declare: ready jobs, at most p_cap of them are counted.
-- Index: jobs_live_ready.
create or replace function pgbroker.queue_count(p_queue text, p_cap integer default null) returns bigint
language sql stable as $$
    select count(*) from (
        select from pgbroker.jobs_live j
        where j.queue = p_queue and j.status = 'PENDING' and j.run_after <= statement_timestamp()
            and (j.expires_at is null or j.expires_at > statement_timestamp())
        limit p_cap) counted
$$;
