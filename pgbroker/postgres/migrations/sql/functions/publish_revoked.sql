-- Publish a task that was revoked before: the job is CANCELLED from the start and holds no dedupe key.
-- Parameters: as publish().
-- Returns: the job's id; null if a job of that task is live, which is handing on (a retry, a replacement): Celery has yet to
-- write that it does so, and would write over the end. Such a job waits until a worker claims it.
-- Index: jobs_live_task.
create or replace function pgbroker.publish_revoked(
    p_queue text, p_task_id text, p_task_name text, p_priority integer, p_run_after timestamptz, p_max_attempts integer,
    p_dedupe_key text, p_exchange text, p_routing_key text, p_content_type text, p_content_encoding text, p_headers text,
    p_properties text, p_body bytea)
returns bigint
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
begin
    if exists (select from pgbroker.jobs_live j where j.task_id = p_task_id) then
        return null;
    end if;
    v_job.job_id := nextval('pgbroker.job_id_seq');
    v_job.run_after := p_run_after;
    v_job.enqueued_at := clock_timestamp();
    v_job.priority := p_priority;
    v_job.attempts := 0;
    v_job.max_attempts := p_max_attempts;
    v_job.queue := p_queue;
    v_job.task_id := p_task_id;
    v_job.task_name := p_task_name;
    v_job.dedupe_key := p_dedupe_key;
    v_job.exchange := p_exchange;
    v_job.routing_key := p_routing_key;
    v_job.content_type := p_content_type;
    v_job.content_encoding := p_content_encoding;
    v_job.headers := p_headers;
    v_job.properties := p_properties;
    v_job.body := p_body;
    perform pgbroker.record_history(v_job, 'CANCELLED', 'REVOKED', 'revoked before it was published', null);
    insert into pgbroker.job_events (job_id, task_id, kind, attempts, detail)
    values (v_job.job_id, p_task_id, 'revoked', 0, 'revoked before it was published');
    perform pgbroker.note_outcome(v_job, 'REVOKED', 'revoked');
    return v_job.job_id;
end
$$;
