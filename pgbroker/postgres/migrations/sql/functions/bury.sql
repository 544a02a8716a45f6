-- Move jobs that one holder has claimed to the dead letters, with the reason.
--   p_ids, p_claims, p_errors  parallel arrays; a claim that was lost matches nothing
-- Returns: the ids that were buried.
-- A copy goes to the exchange that the queue's x-dead-letter-exchange names, if it names one; the dead letter stays here.
-- Locks: the named rows, by key. DELETE + INSERT, see the table. Everything needed to run a job again is kept.
create or replace function pgbroker.bury(p_ids bigint[], p_claims bigint[], p_errors text[]) returns setof bigint
language plpgsql rows 16 set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_job pgbroker.jobs_dead;
begin
    for v_job in
        with gone as (
            delete from pgbroker.jobs_live j where j.job_id = any (p_ids) and j.claim = any (p_claims) returning j.*
        ), noted as (
            insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker, detail)
            select g.job_id, g.task_id, 'buried', g.attempts, g.worker, p_errors[array_position(p_claims, g.claim)] from gone g
        )
        insert into pgbroker.jobs_dead (job_id, run_after, enqueued_at, expires_at, claimed_at, started_at, buried_at, status,
            ack_mode, priority, attempts, losses, max_attempts, requeues, queue, task_id, task_name, worker, dedupe_key, last_error,
            exchange, routing_key, content_type, content_encoding, headers, properties, body)
        select g.job_id, g.run_after, g.enqueued_at, g.expires_at, g.claimed_at, g.started_at, clock_timestamp(), 'DEAD',
            g.ack_mode, g.priority, g.attempts, g.losses, g.max_attempts, g.requeues, g.queue, g.task_id, g.task_name, g.worker,
            g.dedupe_key, coalesce(p_errors[array_position(p_claims, g.claim)], 'no reason given'),
            g.exchange, g.routing_key, g.content_type, g.content_encoding, g.headers, g.properties, g.body
        from gone g
        returning jobs_dead.*
    loop
        perform pgbroker.dead_letter(
            v_job.queue, 'rejected', v_job.last_error, v_job.task_id, v_job.task_name, v_job.priority, null,
            v_job.max_attempts, v_job.exchange, v_job.routing_key, v_job.content_type, v_job.content_encoding, v_job.headers,
            v_job.properties, v_job.body);
        return next v_job.job_id;
    end loop;
end
$$;
