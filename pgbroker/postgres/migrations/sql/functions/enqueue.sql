-- Put a task into a queue from SQL: from any language, from psql, from a trigger. A Celery worker runs it like any other
-- task (message protocol 2, JSON).
--   task        name of the task
--   kwargs      keyword arguments, a JSON object
--   args        positional arguments, a JSON array
--   queue       made of nothing but its name: it need not be declared
--   priority    0 to 9, higher first; others are clamped
--   eta         not before this time; null: now
--   expires     neither claimed nor, while it waits inside a worker, started from this time on; null: never expires
--   dedupe_key  nothing is stored while a live job of the queue holds this key; null: no such key
--   task_id     null: a new uuid
-- Returns: the task id; for a duplicate the live job's (null if that has none). Stricter isolation than READ COMMITTED may
-- raise a serialization failure instead, as with any unique key.
-- Works inside the caller's transaction, whatever that is: nothing is seen by workers before it commits, a duplicate leaves it
-- usable, no setting of it is changed. Hence the queue is not declared either: its uncommitted row would make every other
-- process that declares the queue wait for the caller's end.
-- Locks: as publish().
create or replace function pgbroker.enqueue(
    task text, kwargs jsonb default '{}', args jsonb default '[]', queue text default 'celery', priority int default 0,
    eta timestamptz default null, expires timestamptz default null, dedupe_key text default null, task_id text default null)
returns text
language plpgsql as $$
#variable_conflict error
declare
    v_id text := coalesce(enqueue.task_id, gen_random_uuid()::text);
    v_priority integer := least(greatest(coalesce(enqueue.priority, 0), 0), 9);
    v_headers json;
    v_published record;
begin
    if coalesce(enqueue.task, '') = '' then
        raise exception 'enqueue: task is empty'
            using errcode = 'invalid_parameter_value', hint = 'Name the task as Celery knows it, such as ''shop.tasks.ship''.';
    end if;
    if jsonb_typeof(enqueue.kwargs) is distinct from 'object' then
        raise exception 'enqueue: kwargs must be a JSON object, not %', coalesce(jsonb_typeof(enqueue.kwargs), 'NULL')
            using errcode = 'invalid_parameter_value', hint = 'Build it with jsonb_build_object(name, value, ...).';
    end if;
    if jsonb_typeof(enqueue.args) is distinct from 'array' then
        raise exception 'enqueue: args must be a JSON array, not %', coalesce(jsonb_typeof(enqueue.args), 'NULL')
            using errcode = 'invalid_parameter_value', hint = 'Build it with jsonb_build_array(value, ...).';
    end if;
    if coalesce(enqueue.queue, '') = '' then
        raise exception 'enqueue: queue is empty'
            using errcode = 'invalid_parameter_value', hint = 'Leave it out for the queue ''celery''.';
    end if;
    if octet_length(enqueue.queue) > 255 or octet_length(enqueue.dedupe_key) > 2000 or octet_length(v_id) > 255 then
        raise exception 'enqueue: a queue name or task id is longer than 255 bytes, or a dedupe key than 2000'
            using errcode = 'invalid_parameter_value', hint = 'Use a hash, such as md5(key), for a long dedupe key.';
    end if;
    if enqueue.dedupe_key = '' or v_id = '' then
        raise exception 'enqueue: dedupe_key or task_id is an empty text'
            using errcode = 'invalid_parameter_value', hint = 'Leave it out, or give null, for none.';
    end if;
    if pgbroker.queue_kind(enqueue.queue) = 'transient' then
        raise exception 'enqueue: queue "%" is transient (exclusive, auto-delete or x-expires) and holds no jobs', enqueue.queue
            using errcode = 'invalid_parameter_value', hint = 'Use a queue that Celery workers consume tasks from.';
    end if;
    -- as celery.app.amqp.AMQP.as_task_v2 (Celery 5.7). The row holds the eta: with one in the headers the worker would
    -- wait for it once more by its own clock. expires stays in, because the worker looks at it before it starts the task.
    v_headers := json_build_object(
        'lang', 'py', 'task', enqueue.task, 'id', v_id, 'shadow', null, 'eta', null,
        'expires', case when isfinite(enqueue.expires)
            then to_char(enqueue.expires at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') end,
        'group', null, 'group_index', null, 'retries', 0, 'timelimit', json_build_array(null, null),
        'root_id', v_id, 'parent_id', null,
        'argsrepr', left(enqueue.args::text, 1024), 'kwargsrepr', left(enqueue.kwargs::text, 1024),
        'origin', format('sql%s@%s', pg_backend_pid(), current_database()),
        'ignore_result', false, 'replaced_task_nesting', 0, 'stamped_headers', null, 'stamps', json_build_object());
    select p.job_id, p.duplicate_task_id into v_published
    from pgbroker.publish(
        p_queue => enqueue.queue, p_task_id => v_id, p_task_name => enqueue.task, p_priority => v_priority,
        p_run_after => enqueue.eta, p_expires_at => enqueue.expires, p_delay_seconds => null, p_ttl_seconds => null,
        p_dedupe_key => enqueue.dedupe_key, p_max_attempts => 5, p_exchange => null, p_routing_key => null,
        p_content_type => 'application/json', p_content_encoding => 'utf-8', p_headers => v_headers::text,
        -- a task that is retried finds its key there
        p_properties => json_strip_nulls(json_build_object(
            'correlation_id', v_id, 'reply_to', '', 'delivery_mode', 2, 'priority', v_priority,
            'dedupe_key', enqueue.dedupe_key))::text,
        p_body => convert_to(jsonb_build_array(enqueue.args, enqueue.kwargs, jsonb_build_object(
            'callbacks', null, 'errbacks', null, 'chain', null, 'chord', null))::text, 'UTF8'),
        p_joined => true) p;
    return case when v_published.job_id is null then v_published.duplicate_task_id else v_id end;
end
$$;
