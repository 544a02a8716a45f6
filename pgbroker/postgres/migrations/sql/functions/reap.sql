-- Take back what lies under leases that ran out.
--   p_limit  how many jobs at most in one call
-- Returns: for each job its id and the new status.
--   not started                  PENDING at its old place, attempt returned
--   started, late ack (or ack mode unknown)   PENDING, at once the first time and with back-off after that; DEAD when
--                                it was lost max_attempts times
--   started, early ack           DEAD, "worker lost after start": never run twice, never silently gone
--   succeeded, and only its end was not said   DONE (has_succeeded)
-- One reaper at a time (advisory lock of this transaction); the others return nothing. Rows that their holder is settling
-- right now are skipped. Index: jobs_live_held, all of it: it is as long as the number of running jobs.
create or replace function pgbroker.reap(p_limit integer default 1000)
returns table (reaped_job_id bigint, new_status text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_job pgbroker.jobs_live;
    v_now timestamptz := clock_timestamp();
    v_reason text;
    v_unstarted boolean;
    v_queues text[] := '{}';
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.reap', 0)) then
        return;
    end if;
    for v_job in
        select j.* from pgbroker.jobs_live j
        where j.status = 'RUNNING' and j.worker > '' and j.lease_until < v_now
        limit p_limit for update skip locked
    loop
        v_unstarted := v_job.ack_mode = 'REPORTED';
        if v_job.ack_mode = 'EARLY' then
            v_reason := format('worker lost after start: lease of %s ran out at %s', v_job.worker, v_job.lease_until);
        else
            v_reason := format('lease-expired reclaim: lease of %s ran out at %s', v_job.worker, v_job.lease_until);
        end if;
        reaped_job_id := v_job.job_id;
        if pgbroker.has_succeeded(v_job) then
            delete from pgbroker.jobs_live j where j.job_id = v_job.job_id;
            perform pgbroker.record_history(v_job, 'DONE', 'SUCCESS', null, null);
            new_status := 'DONE';
        elsif v_job.ack_mode = 'EARLY' or (not v_unstarted and v_job.losses + 1 >= v_job.max_attempts) then
            if v_job.ack_mode <> 'EARLY' then
                v_reason := format('%s; loss %s of %s', v_reason, v_job.losses + 1, v_job.max_attempts);
            end if;
            update pgbroker.jobs_live j set losses = least(j.losses, 32766) + 1 where j.job_id = v_job.job_id;
            perform pgbroker.bury(array[v_job.job_id], array[v_job.claim], array[v_reason]);
            perform pgbroker.note_outcome(v_job, 'LOST', v_reason);
            new_status := 'DEAD';
        else
            insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker, detail)
            values (v_job.job_id, v_job.task_id, 'lost', v_job.attempts, v_job.worker, v_reason);
            update pgbroker.jobs_live j
            set status = 'PENDING', attempts = case when v_unstarted then greatest(j.attempts - 1, 0) else j.attempts end,
                losses = case when v_unstarted then j.losses else least(j.losses, 32766) + 1 end,
                claim = null, worker = null, lease_until = null, claimed_at = null, started_at = null, ack_mode = null,
                last_error = v_reason,
                run_after = case when v_unstarted or j.losses = 0 then j.run_after
                    else v_now + make_interval(secs => pgbroker.backoff_seconds(j.losses)) end
            where j.job_id = v_job.job_id;
            v_queues := v_queues || v_job.queue;
            new_status := 'PENDING';
        end if;
        return next;
    end loop;
    perform pgbroker.wake(q) from (select distinct unnest(v_queues) q) each_queue;
end
$$;
