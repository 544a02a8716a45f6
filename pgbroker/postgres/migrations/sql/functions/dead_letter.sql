-- Send a message that has ended in its queue on to the exchange that the queue's x-dead-letter-exchange names, as RabbitMQ
-- does: with the queue's x-dead-letter-routing-key or else its own routing key, without its expiry, and with the header
-- x-death, which counts how often it ended in which queue and why.
--   p_reason      rejected, expired or maxlen
--   p_detail      why, for people; null: nothing more is known
--   p_task_id, p_task_name   null: as the headers say
--   p_dedupe_key  the key that it takes along; null: none
--   p_exchange, p_routing_key, p_body ...   the message; an exchange that is null is the default one
-- Returns: how many queues it went to; 0 if the queue names no exchange, or that leads nowhere (the message then ends here,
-- as in RabbitMQ), or headers or properties are no JSON.
-- A message that nobody rejected does not come back to a queue where it has ended before: it would go round for ever.
-- Works inside whatever transaction ends the message, so it wakes as in a caller's (see publish). A key that another open
-- transaction is inserting is waited for for a second.
-- Source: RabbitMQ's guide "Dead Letter Exchanges".
create or replace function pgbroker.dead_letter(
    p_queue text, p_reason text, p_detail text, p_task_id text, p_task_name text, p_priority integer, p_dedupe_key text,
    p_max_attempts integer, p_exchange text, p_routing_key text, p_content_type text, p_content_encoding text,
    p_headers text, p_properties text, p_body bytea)
returns integer
language plpgsql as $$
#variable_conflict use_column
declare
    v_exchange text;
    v_key text;
    v_headers jsonb;
    v_properties jsonb;
    v_deaths jsonb;
    v_death jsonb;
    v_kind text;
    v_target text;
    v_job_id bigint;
    v_count integer := 0;
    v_lock_timeout text := current_setting('lock_timeout');
begin
    select q.dead_letter_exchange, q.dead_letter_key into v_exchange, v_key from pgbroker.transient_queues q where q.name = p_queue;
    if not found then
        select q.dead_letter_exchange, q.dead_letter_key into v_exchange, v_key from pgbroker.queues q where q.name = p_queue;
    end if;
    if v_exchange is null then
        return 0;
    end if;
    v_key := coalesce(v_key, p_routing_key, p_queue);
    begin
        v_headers := coalesce(p_headers, '{}')::jsonb;
        v_properties := coalesce(p_properties, '{}')::jsonb;
        v_deaths := coalesce(nullif(v_headers -> 'x-death', 'null'), '[]');
        select d.value into v_death from jsonb_array_elements(v_deaths) d
        where d.value ->> 'queue' = p_queue and d.value ->> 'reason' = p_reason;
        select coalesce(jsonb_agg(d.value order by d.place), '[]') into v_deaths
        from jsonb_array_elements(v_deaths) with ordinality d (value, place) where d.value is distinct from v_death;
        v_death := jsonb_strip_nulls(jsonb_build_object(
            'queue', p_queue, 'reason', p_reason, 'count', 1 + coalesce((v_death ->> 'count')::bigint, 0),
            'exchange', coalesce(p_exchange, ''), 'routing-keys', jsonb_build_array(coalesce(p_routing_key, p_queue)),
            'time', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"'),
            'original-expiration', v_properties ->> 'expiration', 'detail', left(p_detail, 1000)));
        v_deaths := v_death || v_deaths;
        v_headers := jsonb_build_object(
            'x-first-death-queue', p_queue, 'x-first-death-reason', p_reason, 'x-first-death-exchange', coalesce(p_exchange, '')
            ) || v_headers || jsonb_build_object('x-death', v_deaths);
    exception when data_exception then
        return 0;
    end;
    begin
        perform set_config('lock_timeout', '1000', true);
        for v_target, v_kind in select r.queue_name, r.kind from pgbroker.route(v_exchange, v_key, v_headers::text) r loop
            continue when v_deaths @> jsonb_build_array(jsonb_build_object('queue', v_target))
                and not v_deaths @> '[{"reason": "rejected"}]';
            if v_kind = 'job' then
                select p.job_id into v_job_id from pgbroker.publish(
                    v_target, coalesce(p_task_id, v_headers ->> 'id', v_properties ->> 'correlation_id'),
                    coalesce(p_task_name, v_headers ->> 'task'), p_priority, null, null, null, null, p_dedupe_key, p_max_attempts,
                    nullif(v_exchange, ''), case when v_exchange <> '' then v_key end, p_content_type, p_content_encoding,
                    v_headers::text, (v_properties - 'expiration')::text, p_body, true) p;
                v_count := v_count + (v_job_id is not null)::integer;
            else
                perform pgbroker.post(v_target, p_priority, null, v_exchange, v_key, p_content_type, p_content_encoding,
                    v_headers::text, (v_properties - 'expiration')::text, p_body, true);
                v_count := v_count + 1;
            end if;
        end loop;
    exception when lock_not_available then
        v_count := 0;
    end;
    perform set_config('lock_timeout', v_lock_timeout, true);
    return v_count;
end
$$;
