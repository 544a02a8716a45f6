-- Put a transient message that was read back to its old place, unless its queue is gone.
--   p_redelivered  a consumer had it
create or replace function pgbroker.return_mail(
    p_message_id bigint, p_queue text, p_priority integer, p_expires_at timestamptz, p_redelivered boolean, p_exchange text,
    p_routing_key text, p_content_type text, p_content_encoding text, p_headers text, p_properties text, p_body bytea)
returns void
language plpgsql as $$
begin
    if not exists (select from pgbroker.transient_queues q where q.name = p_queue) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pgbroker.mailbox (message_id, queue, priority, expires_at, redelivered, exchange, routing_key, content_type,
        content_encoding, headers, properties, body)
    overriding system value
    values (p_message_id, p_queue, p_priority, p_expires_at, p_redelivered, p_exchange, p_routing_key, p_content_type,
        p_content_encoding, p_headers, p_properties, p_body);
    perform pgbroker.wake(p_queue);
end
$$;
