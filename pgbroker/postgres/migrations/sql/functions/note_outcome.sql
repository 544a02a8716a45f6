-- Have Celery told of an end that the broker made: into the outbox, in the transaction of the end itself. Nothing for a
-- job that is no task of Celery's.
--   p_outcome  LOST (becomes FAILURE, WorkerLostError), EXPIRED, REVOKED or PURGED (become REVOKED)
--   p_detail   why
-- Wakes the workers, and whoever waits for the result: until it is delivered, the outcome counts as the result (see
-- get_results). May run in a caller's transaction: it changes no row that others need.
create or replace function pgbroker.note_outcome(p_job pgbroker.jobs_live, p_outcome text, p_detail text) returns void
language plpgsql as $$
begin
    if p_job.task_name is null or p_job.headers is null then
        return;
    end if;
    insert into pgbroker.outcome_outbox (job_id, task_id, task_name, queue, outcome, detail, exchange, routing_key,
        content_type, content_encoding, headers, properties, body)
    values (p_job.job_id, p_job.task_id, p_job.task_name, p_job.queue, p_outcome, p_detail, p_job.exchange,
        p_job.routing_key, p_job.content_type, p_job.content_encoding, p_job.headers, p_job.properties, p_job.body);
    perform pg_notify(pgbroker.outcome_channel(), '');
    perform pg_notify(w.channel, w.payload)
    from pgbroker.waiters w where w.task_id = p_job.task_id and w.until > clock_timestamp();
end
$$;
