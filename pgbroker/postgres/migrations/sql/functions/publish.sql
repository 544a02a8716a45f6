-- Put one job into a queue.
--   p_run_after     not before this time; null: now
--   p_expires_at    never claimed from this time on; null: never expires
--   p_delay_seconds, p_ttl_seconds   the same two, counted from now by the server's clock
--   p_joined        true inside a caller's transaction: then no sleeper's row is touched (everybody else would skip
--                   the only sleeper until that transaction ends) and the queue's shared channel is notified instead;
--                   and no parameter of the caller's transaction is changed
--   p_wait_ms       longest wait for somebody else's open transaction that holds the same dedupe key; null: as the
--                   session has it. Not used when joined
--   p_with_alias    the task id was handed out before: as a duplicate it leads to the live job's result (see add_alias)
-- The queue's x-message-ttl lets the job expire, counted from when it becomes due, and its x-max-priority lowers what is
-- above it.
-- Returns: the new job's id; or, for a duplicate, duplicate_of and the task id of the live job. A task that was revoked
-- before gets an id too, but no job of it begins: it is CANCELLED at once (see claim() for one that runs and is retried).
-- Locks: the new row; an insert whose key is being inserted by an open transaction waits for its end.
-- A duplicate raises nothing, so a caller's transaction stays usable. A holder that has expired does not count: it is
-- cancelled here. Nor does a holder that runs the task of the same id with fewer
-- retries or replacements behind it: it is handing on (and not a publish repeated after a lost answer), so it
-- ends here as DONE and the key passes to the new job in this one statement. Index: jobs_live_dedupe.
create or replace function pgbroker.publish(
    p_queue text, p_task_id text, p_task_name text, p_priority integer, p_run_after timestamptz, p_expires_at timestamptz,
    p_delay_seconds double precision, p_ttl_seconds double precision, p_dedupe_key text, p_max_attempts integer,
    p_exchange text, p_routing_key text, p_content_type text, p_content_encoding text, p_headers text, p_properties text,
    p_body bytea, p_joined boolean default false, p_wait_ms integer default null, p_with_alias boolean default false,
    out job_id bigint, out duplicate_of bigint, out duplicate_task_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_run_after timestamptz := coalesce(p_run_after, v_now + make_interval(secs => coalesce(p_delay_seconds, 0)));
    v_expires_at timestamptz := coalesce(p_expires_at, v_now + make_interval(secs => p_ttl_seconds));
    v_holder pgbroker.jobs_live;
    v_is_retry boolean;
    v_queue_ttl real;
    v_max_priority smallint;
begin
    select q.ttl_seconds, q.max_priority into v_queue_ttl, v_max_priority from pgbroker.queues q where q.name = p_queue;
    p_priority := least(p_priority, v_max_priority);
    v_expires_at := least(v_expires_at, v_run_after + make_interval(secs => v_queue_ttl));
    if exists (select from pgbroker.revoked r where r.task_id = p_task_id and r.until > v_now)
        or exists (select from pgbroker.revoked_stamps) and pgbroker.bears_revoked_stamp(p_headers, p_properties)
    then
        publish.job_id := pgbroker.publish_revoked(p_queue, p_task_id, p_task_name, p_priority, v_run_after, p_max_attempts,
            p_dedupe_key, p_exchange, p_routing_key, p_content_type, p_content_encoding, p_headers, p_properties, p_body);
        if publish.job_id is not null then
            return;
        end if;
    end if;
    if p_dedupe_key is null then
        insert into pgbroker.jobs_live (run_after, enqueued_at, expires_at, priority, max_attempts, queue, task_id, task_name,
            exchange, routing_key, content_type, content_encoding, headers, properties, body)
        values (v_run_after, v_now, v_expires_at, p_priority, p_max_attempts, p_queue, p_task_id, p_task_name,
            p_exchange, p_routing_key, p_content_type, p_content_encoding, p_headers, p_properties, p_body)
        returning jobs_live.job_id into publish.job_id;
    else
        if not p_joined and p_wait_ms is not null then
            perform set_config('lock_timeout', p_wait_ms::text, true);
        end if;
        -- a loop, because the holder may end between the insert that met it and the look-up
        loop
            insert into pgbroker.jobs_live (run_after, enqueued_at, expires_at, priority, max_attempts, queue, task_id,
                task_name, dedupe_key, exchange, routing_key, content_type, content_encoding, headers, properties, body)
            values (v_run_after, v_now, v_expires_at, p_priority, p_max_attempts, p_queue, p_task_id,
                p_task_name, p_dedupe_key, p_exchange, p_routing_key, p_content_type, p_content_encoding, p_headers,
                p_properties, p_body)
            on conflict (queue, dedupe_key) where dedupe_key is not null do nothing
            returning jobs_live.job_id into publish.job_id;
            exit when publish.job_id is not null;
            select * into v_holder from pgbroker.jobs_live j where j.queue = p_queue and j.dedupe_key = p_dedupe_key;
            if found then
                v_is_retry := v_holder.task_id = p_task_id
                    and coalesce((p_headers::json ->> 'retries')::integer, 0)
                        > coalesce((v_holder.headers::json ->> 'retries')::integer, 0);
                if v_holder.status = 'RUNNING' and v_holder.task_id = p_task_id and (
                    v_is_retry
                    or coalesce((p_headers::json ->> 'replaced_task_nesting')::integer, 0)
                        > coalesce((v_holder.headers::json ->> 'replaced_task_nesting')::integer, 0)
                ) then
                    delete from pgbroker.jobs_live j where j.job_id = v_holder.job_id and j.claim = v_holder.claim;
                    if found then
                        -- what Celery will report of it, to no effect any more
                        perform pgbroker.record_history(
                            v_holder, 'DONE', case when v_is_retry then 'RETRY' else 'IGNORED' end, null, null);
                        if v_is_retry then
                            insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker)
                            values (v_holder.job_id, p_task_id, 'retried', v_holder.attempts, v_holder.worker);
                        end if;
                    end if;
                elsif v_holder.status = 'PENDING' and v_holder.expires_at <= v_now then
                    perform pgbroker.cancel(v_holder.job_id, 'EXPIRED', 'expired before it was claimed');
                else
                    publish.duplicate_of := v_holder.job_id;
                    publish.duplicate_task_id := v_holder.task_id;
                    if p_with_alias then
                        perform pgbroker.add_alias(p_task_id, v_holder.task_id);
                    end if;
                    return;
                end if;
            elsif current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
                -- the holder is invisible to this snapshot: it was committed after it was taken. It is a duplicate of
                -- a job that cannot be named.
                publish.duplicate_of := 0;
                return;
            end if;
        end loop;
    end if;
    -- A job further in the future than any fallback poll wakes nobody: whoever sleeps looks again before it is due.
    if v_run_after > v_now + interval '10 seconds' then
        return;
    end if;
    if p_joined then
        perform pg_notify(pgbroker.queue_channel(p_queue), '');
    else
        perform pgbroker.wake(p_queue);
    end if;
end
$$;
