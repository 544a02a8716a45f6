-- Whether the task of a message bears a stamp that was revoked, by the rule of Celery's workers.
--   p_headers, p_properties  of the message, JSON texts
-- A job that an operator has requeued since (property requeued_at, see requeue) bears none for that. Headers that somebody
-- wrote by hand and that are no JSON bear none either: the worker that gets them will say so.
-- Callers look first whether there are rows in revoked_stamps at all; most messages bear no stamps and are not parsed.
-- Source: celery.worker.request.Request.revoked (5.7).
create or replace function pgbroker.bears_revoked_stamp(p_headers text, p_properties text) returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stamps json;
    v_requeued_at timestamptz := '-infinity';
begin
    if p_headers is null or p_headers !~ '"stamped_headers"\s*:\s*\[' then
        return false;
    end if;
    v_stamps := p_headers::json -> 'stamps';
    if p_properties like '%"requeued_at"%' then
        v_requeued_at := to_timestamp((p_properties::json ->> 'requeued_at')::double precision);
    end if;
    -- only the values are made jsonb, which compares them but refuses some of what JSON may hold
    return exists (
        select from json_array_elements_text(p_headers::json -> 'stamped_headers') s (header)
        cross join lateral (select v_stamps -> s.header as borne) b
        cross join lateral json_array_elements(
            case when json_typeof(b.borne) = 'array' then b.borne else json_build_array(b.borne) end) e (value)
        join pgbroker.revoked_stamps r on r.header = s.header and r.value = e.value::text::jsonb
        where json_typeof(b.borne) <> 'null' and r.until > clock_timestamp() and r.revoked_at > v_requeued_at);
exception when data_exception then
    return false;
end
$$;
