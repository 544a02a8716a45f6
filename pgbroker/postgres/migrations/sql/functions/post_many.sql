-- Send Celery's events: many messages through one exchange, in the order of the arrays. dispatch() for messages that nobody
-- waits for and that have neither task ids nor keys, at a tenth of its cost: each routing key is looked up once, each queue
-- gets its messages by one insert and one wake-up.
--   p_exchange  not a headers exchange
--   the others  parallel arrays, one item for each message; p_ttl_seconds is the messages' own expiry
-- Returns: whether any of them led anywhere.
create or replace function pgbroker.post_many(
    p_exchange text, p_routing_keys text[], p_priorities integer[], p_ttl_seconds double precision[], p_content_types text[],
    p_content_encodings text[], p_headers text[], p_properties text[], p_bodies bytea[])
returns boolean
language plpgsql as $$
declare
    v_commit text := current_setting('synchronous_commit');
    v_now timestamptz := clock_timestamp();
    v_queue text;
    v_kind text;
    v_keys text[];
    v_traits pgbroker.transient_queues;
    v_message record;
    v_is_heard boolean := false;
    v_has_jobs boolean := false;
begin
    perform set_config('synchronous_commit', 'off', true);
    for v_queue, v_kind, v_keys in
        select r.queue_name, r.kind, array_agg(k.key)
        from (select distinct unnest(p_routing_keys) as key) k, lateral pgbroker.route(p_exchange, k.key) r
        group by 1, 2 order by 1
    loop
        v_is_heard := true;
        v_has_jobs := v_has_jobs or v_kind = 'job';
        select * into v_traits from pgbroker.transient_queues where name = v_queue;
        if v_kind = 'job' or v_traits.max_length is not null then
            for v_message in
                select * from unnest(p_routing_keys, p_priorities, p_ttl_seconds, p_content_types, p_content_encodings,
                    p_headers, p_properties, p_bodies) with ordinality
                    m (key, priority, ttl_seconds, content_type, content_encoding, headers, properties, body, number)
                where m.key = any (v_keys) order by m.number
            loop
                if v_kind = 'job' then
                    perform pgbroker.publish(v_queue, null, null, v_message.priority, null, null, null,
                        v_message.ttl_seconds, null, 5, p_exchange, v_message.key, v_message.content_type,
                        v_message.content_encoding, v_message.headers, v_message.properties, v_message.body);
                else
                    perform pgbroker.post(v_queue, v_message.priority, v_message.ttl_seconds, p_exchange, v_message.key,
                        v_message.content_type, v_message.content_encoding, v_message.headers, v_message.properties,
                        v_message.body);
                end if;
            end loop;
            continue;
        end if;
        insert into pgbroker.mailbox (queue, priority, expires_at, exchange, routing_key, content_type, content_encoding,
            headers, properties, body)
        select v_queue, least(m.priority, v_traits.max_priority),
            v_now + make_interval(secs => least(m.ttl_seconds, v_traits.ttl_seconds)),
            p_exchange, m.key, m.content_type, m.content_encoding, m.headers, m.properties, m.body
        from unnest(p_routing_keys, p_priorities, p_ttl_seconds, p_content_types, p_content_encodings, p_headers,
            p_properties, p_bodies) with ordinality
            m (key, priority, ttl_seconds, content_type, content_encoding, headers, properties, body, number)
        where m.key = any (v_keys) order by m.number;
        perform pgbroker.wake(v_queue);
    end loop;
    if v_has_jobs then
        perform set_config('synchronous_commit', v_commit, true);
    end if;
    return v_is_heard;
end
$$;
