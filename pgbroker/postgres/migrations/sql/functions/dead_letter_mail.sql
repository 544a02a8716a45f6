-- Send a transient message on to the dead letter exchange of its queue, if that names one; see dead_letter().
create or replace function pgbroker.dead_letter_mail(p_mail pgbroker.mailbox, p_reason text) returns integer
language plpgsql as $$
begin
    return pgbroker.dead_letter(
        p_mail.queue, p_reason, null, null, null, p_mail.priority, null, 5, p_mail.exchange, p_mail.routing_key,
        p_mail.content_type, p_mail.content_encoding, p_mail.headers, p_mail.properties, p_mail.body);
end
$$;
