-- Give a dead letter another life: PENDING, attempts 0, due at once.
-- Returns: outcome 'requeued', 'absent' (no such dead letter) or 'taken' (its dedupe key is held by holder_job_id).
-- A holder that has expired does not count: it is cancelled here.
-- Whoever requeues wins over a revoke from before. It is lifted for the task's id, so that a retry runs too, and the message
-- is marked with the property requeued_at: a worker that was told of the revoke forgets it when it meets the mark.
-- Locks: the dead row, and the row of revoked. DELETE + INSERT, see the table.
create or replace function pgbroker.requeue(p_job_id bigint, out outcome text, out holder_job_id bigint, out holder_task_id text)
language plpgsql as $$
declare
    v_job pgbroker.jobs_dead;
    v_id bigint;
    v_holder_expires timestamptz;
    v_mark text := format('"requeued_at": %s}', extract(epoch from clock_timestamp()));
begin
    select * into v_job from pgbroker.jobs_dead d where d.job_id = p_job_id for update;
    if not found then
        outcome := 'absent';
        return;
    end if;
    -- at the end, where it stands over one of an earlier requeue; as text, since jsonb refuses some of what JSON may hold
    if v_job.headers is not null then
        v_job.properties := case when coalesce(v_job.properties, '{}') ~ '^\s*\{\s*\}\s*$' then '{' || v_mark
            else regexp_replace(v_job.properties, '\}\s*$', ', ' || v_mark) end;
    end if;
    -- a loop, because the holder of the key may end between the insert that met it and the look-up
    loop
        insert into pgbroker.jobs_live (job_id, run_after, enqueued_at, priority, max_attempts, queue, task_id, task_name,
            dedupe_key, last_error, exchange, routing_key, content_type, content_encoding, headers, properties, body)
        values (v_job.job_id, clock_timestamp(), v_job.enqueued_at, v_job.priority, v_job.max_attempts, v_job.queue,
            v_job.task_id, v_job.task_name, v_job.dedupe_key, v_job.last_error, v_job.exchange, v_job.routing_key,
            v_job.content_type, v_job.content_encoding, v_job.headers, v_job.properties, v_job.body)
        on conflict (queue, dedupe_key) where dedupe_key is not null do nothing
        returning job_id into v_id;
        exit when v_id is not null;
        select j.job_id, j.task_id, case when j.status = 'PENDING' then j.expires_at end
        into holder_job_id, holder_task_id, v_holder_expires
        from pgbroker.jobs_live j where j.queue = v_job.queue and j.dedupe_key = v_job.dedupe_key;
        if holder_job_id is not null and (v_holder_expires is null or v_holder_expires > clock_timestamp()) then
            outcome := 'taken';
            return;
        end if;
        if holder_job_id is null and current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
            -- held by a job that this snapshot cannot see
            outcome := 'taken';
            return;
        end if;
        perform pgbroker.cancel(holder_job_id, 'EXPIRED', 'expired before it was claimed');
    end loop;
    holder_job_id := null;
    holder_task_id := null;
    delete from pgbroker.jobs_dead d where d.job_id = p_job_id;
    delete from pgbroker.revoked r where r.task_id = v_job.task_id;
    insert into pgbroker.job_events (job_id, task_id, kind, attempts, detail)
    values (p_job_id, v_job.task_id, 'requeued', v_job.attempts, 'requeued by an operator');
    perform pgbroker.wake(v_job.queue);
    outcome := 'requeued';
end
$$;
