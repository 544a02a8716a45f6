-- Whether a message's headers are those that a binding to a headers exchange asks for.
--   p_arguments  of the binding, a JSON object: x-match is all (the usual), any, all-with-x or any-with-x; of the other
--                names those that begin with x- count only with the latter two; null asks for no particular value
--   p_headers    of the message, a JSON object
-- Source: AMQP 0-9-1, section 3.1.3.4, "The headers exchange type", and RabbitMQ's additions.
create or replace function pgbroker.matches_headers(p_arguments text, p_headers text) returns boolean
language plpgsql immutable parallel safe as $$
declare
    v_arguments jsonb := p_arguments;
    v_headers jsonb := coalesce(p_headers, '{}');
    v_match text := coalesce(v_arguments ->> 'x-match', 'all');
    v_asked integer;
    v_met integer;
begin
    select count(*), count(*) filter (where v_headers ? a.key and a.value in (v_headers -> a.key, 'null'))
    into v_asked, v_met
    from jsonb_each(v_arguments - 'x-match') a
    where v_match like '%-with-x' or not starts_with(a.key, 'x-');
    return case when v_match like 'any%' then v_met > 0 else v_met = v_asked end;
end
$$;
