-- A remembered group, or null if there is none or it has expired. Index: primary key.
create or replace function pgbroker.get_result_group(p_group_id text) returns bytea
language plpgsql as $$
begin
    return (select g.meta from pgbroker.result_groups g
        where g.group_id = p_group_id and (g.expires_at is null or g.expires_at > clock_timestamp()));
end
$$;
