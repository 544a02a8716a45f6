-- Claim up to p_want ready jobs for one worker process.
--   p_worker         names one process start, never a node: an unique text
--   p_queues         in the order in which they are looked at
--   p_want           how many jobs at most
--   p_lease_seconds  how long the claims hold without renewal
--   p_reports_start  true if the worker will say when a task begins (a Celery worker), false for a plain consumer
--   p_floors         ten for each queue, lanes 9 to 0: jobs with an older run_after are not looked at; null: all are
--   p_low_first      true: priority 0 goes first (applications that come from Redis)
-- Returns: the claimed rows, in no order.
-- A job whose task was revoked after it ran or while it was published is not handed out: it ends here.
-- Locks: the claimed rows, skipping those that somebody else is claiming. Index: jobs_live_ready, lane by lane, so that
-- neither a backlog is sorted nor jobs in the future are walked. The time is taken once: a volatile comparison would be
-- no index condition. Ids first, then one update by key: a LIMIT inside the update's own plan does not hold under a
-- nested loop.
create or replace function pgbroker.claim(
    p_worker text, p_queues text[], p_want integer, p_lease_seconds double precision, p_reports_start boolean default false,
    p_floors timestamptz[] default null, p_low_first boolean default false)
returns setof pgbroker.jobs_live
language plpgsql rows 16 set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[] := '{}';
    v_more bigint[];
    v_want integer := p_want;
    v_lane smallint;
    v_floor timestamptz;
begin
    for q in 1 .. coalesce(array_length(p_queues, 1), 0) loop
        exit when v_want <= 0;
        continue when exists (select from pgbroker.queues where name = p_queues[q] and paused_at is not null);
        for step in 0..9 loop
            v_lane := case when p_low_first then step else 9 - step end;
            v_floor := coalesce(p_floors[(q - 1) * 10 + 10 - v_lane], '-infinity');
            v_more := array(
                select j.job_id from pgbroker.jobs_live j
                where j.queue = p_queues[q] and j.priority = v_lane and j.status = 'PENDING'
                    and j.run_after <= v_now and j.run_after >= v_floor
                    and (j.expires_at is null or j.expires_at > v_now)
                order by j.run_after, j.job_id
                limit v_want for update skip locked);
            if v_more <> '{}' then
                v_ids := v_ids || v_more;
                v_want := v_want - cardinality(v_more);
                exit when v_want <= 0;
            end if;
        end loop;
    end loop;
    if v_ids <> '{}' and (exists (select from pgbroker.revoked) or exists (select from pgbroker.revoked_stamps)) then
        v_ids := pgbroker.end_revoked(v_ids);
    end if;
    if v_ids = '{}' then
        return;
    end if;
    return query
        update pgbroker.jobs_live j
        set status = 'RUNNING', attempts = least(j.attempts, 32766) + 1, claim = nextval('pgbroker.claim_seq'),
            worker = p_worker, claimed_at = v_now, lease_until = v_now + make_interval(secs => p_lease_seconds),
            ack_mode = case when p_reports_start then 'REPORTED' else 'UNKNOWN' end::pgbroker.ack_mode
        where j.job_id = any (v_ids)
        returning j.*;
    -- Whoever takes all it wanted may have left some behind: hand the wake-up on.
    if v_want <= 0 and exists (select from pgbroker.sleepers where queue = any (p_queues)) then
        perform pgbroker.wake(q) from unnest(p_queues) q;
    end if;
end
$$;
