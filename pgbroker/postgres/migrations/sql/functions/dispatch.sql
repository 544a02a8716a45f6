-- Send one message through an exchange: into every queue that is bound, as a job or as a transient message. The long way
-- round, for exchanges and transient queues; a job on the default exchange goes straight to publish().
-- Parameters: those of publish(), with exchange and routing key first.
-- Returns: one row for each queue; for jobs with job_id, or duplicate_of and duplicate_task_id.
-- Where an exchange feeds several queues a dedupe key holds for each of them by itself, and a task id becomes an alias only
-- if there is a job of it in none.
create or replace function pgbroker.dispatch(
    p_exchange text, p_routing_key text, p_task_id text, p_task_name text, p_priority integer, p_run_after timestamptz,
    p_expires_at timestamptz, p_delay_seconds double precision, p_ttl_seconds double precision, p_dedupe_key text,
    p_max_attempts integer, p_content_type text, p_content_encoding text, p_headers text, p_properties text, p_body bytea,
    p_joined boolean default false, p_wait_ms integer default null, p_with_alias boolean default false)
returns table (queue_name text, queue_kind text, job_id bigint, duplicate_of bigint, duplicate_task_id text)
language plpgsql rows 1 as $$
declare
    v_commit text := current_setting('synchronous_commit');
    v_is_stored boolean := false;
    v_holder_task_id text;
begin
    for queue_name, queue_kind in select r.queue_name, r.kind from pgbroker.route(p_exchange, p_routing_key, p_headers) r loop
        job_id := null;
        duplicate_of := null;
        duplicate_task_id := null;
        if queue_kind = 'job' then
            select p.job_id, p.duplicate_of, p.duplicate_task_id into job_id, duplicate_of, duplicate_task_id
            from pgbroker.publish(queue_name, p_task_id, p_task_name, p_priority, p_run_after, p_expires_at, p_delay_seconds,
                p_ttl_seconds, p_dedupe_key, p_max_attempts, p_exchange, p_routing_key, p_content_type, p_content_encoding,
                p_headers, p_properties, p_body, p_joined, p_wait_ms) p;
            v_is_stored := v_is_stored or job_id is not null;
            v_holder_task_id := coalesce(v_holder_task_id, duplicate_task_id);
        else
            perform pgbroker.post(queue_name, p_priority, p_ttl_seconds, p_exchange, p_routing_key, p_content_type,
                p_content_encoding, p_headers, p_properties, p_body, p_joined);
        end if;
        return next;
        -- post() does not wait for its own commit; a job that goes along must
        if not p_joined and queue_kind = 'transient' then
            perform set_config('synchronous_commit', v_commit, true);
        end if;
    end loop;
    if p_with_alias and not v_is_stored then
        perform pgbroker.add_alias(p_task_id, v_holder_task_id);
    end if;
end
$$;
