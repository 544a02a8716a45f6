-- Put one transient message into a queue's mailbox and wake its reader.
--   p_ttl_seconds  the message's own expiry; the queue's x-message-ttl holds where it is shorter
-- x-max-length drops the oldest messages, as RabbitMQ does; x-max-priority lowers what is above it.
create or replace function pgbroker.post(
    p_queue text, p_priority integer, p_ttl_seconds double precision, p_exchange text, p_routing_key text, p_content_type text,
    p_content_encoding text, p_headers text, p_properties text, p_body bytea, p_joined boolean default false)
returns void
language plpgsql as $$
declare
    v_queue pgbroker.transient_queues;
    v_mail pgbroker.mailbox;
begin
    select * into v_queue from pgbroker.transient_queues where name = p_queue;
    if not p_joined then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    insert into pgbroker.mailbox (queue, priority, expires_at, exchange, routing_key, content_type, content_encoding, headers,
        properties, body)
    values (p_queue, least(p_priority, v_queue.max_priority),
        clock_timestamp() + make_interval(secs => least(p_ttl_seconds, v_queue.ttl_seconds)),
        p_exchange, p_routing_key, p_content_type, p_content_encoding, p_headers, p_properties, p_body);
    if v_queue.max_length is not null then
        for v_mail in
            delete from pgbroker.mailbox m where m.message_id in (
                select o.message_id from pgbroker.mailbox o where o.queue = p_queue
                order by o.message_id desc offset v_queue.max_length)
            returning m.*
        loop
            perform pgbroker.dead_letter_mail(v_mail, 'maxlen');
        end loop;
    end if;
    if p_joined then
        perform pg_notify(pgbroker.queue_channel(p_queue), '');
    else
        perform pgbroker.wake(p_queue);
    end if;
end
$$;
