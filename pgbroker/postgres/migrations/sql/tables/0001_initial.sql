-- The first schema. `pgbroker.` stands for the configured schema; the installer puts the quoted name in its place.
-- No extension, no foreign keys, no triggers: nothing on the hot path that a claim or a settle would have to pay for.

create type pgbroker.job_status as enum ('PENDING', 'RUNNING', 'DONE', 'DEAD', 'CANCELLED');

-- What the holder of a claim has said about the start of the task. UNKNOWN: it never says (a plain consumer), so the
-- job counts as started, late ack. REPORTED: it will say, and has not yet. EARLY, LATE: started.
create type pgbroker.ack_mode as enum ('UNKNOWN', 'REPORTED', 'EARLY', 'LATE');

create sequence pgbroker.job_id_seq as bigint cache 1;
create sequence pgbroker.claim_seq as bigint cache 1;

-- jobs: one table to its readers. The hot functions name jobs_live, which stays the size of the live work.
-- Rows move between the partitions by DELETE + INSERT, never by an UPDATE of status across them: a settle that waits
-- for a row which is being moved fails with 40001 and would take its whole batch with it.
create table pgbroker.jobs (
    job_id            bigint not null default nextval('pgbroker.job_id_seq'),
    run_after         timestamptz not null,
    enqueued_at       timestamptz not null default clock_timestamp(),
    expires_at        timestamptz,
    claimed_at        timestamptz,
    started_at        timestamptz,
    lease_until       timestamptz,
    buried_at         timestamptz,
    claim             bigint,
    status            pgbroker.job_status not null default 'PENDING',
    ack_mode          pgbroker.ack_mode,
    priority          smallint not null default 0,
    attempts          smallint not null default 0,  -- claims, without those that led to no start
    losses            smallint not null default 0,  -- what max_attempts limits: lost workers and processes, and fail()
    max_attempts      smallint not null default 5,
    requeues          smallint not null default 0,
    queue             text not null,
    task_id           text,
    task_name         text,
    worker            text,
    dedupe_key        text,
    last_error        text,
    -- null means the usual: the default exchange, with the queue's name as routing key
    exchange          text,
    routing_key       text,
    content_type      text,
    content_encoding  text,
    headers           text,
    properties        text,
    body              bytea not null,
    constraint jobs_priority check (priority between 0 and 9),
    constraint jobs_counts check (attempts >= 0 and losses >= 0 and max_attempts >= 1 and requeues >= 0)
) partition by list (status);

create table pgbroker.jobs_live partition of pgbroker.jobs (
    primary key (job_id),
    -- the state machine: a RUNNING job has a holder, a claim and a lease; a PENDING one has none of them
    constraint jobs_live_pending check (status <> 'PENDING' or (claim is null and worker is null and lease_until is null
        and claimed_at is null and started_at is null and ack_mode is null)),
    constraint jobs_live_running check (status <> 'RUNNING' or (claim is not null and worker is not null
        and lease_until is not null and claimed_at is not null and ack_mode is not null)),
    constraint jobs_live_started check ((started_at is not null) = (coalesce(ack_mode, 'REPORTED') in ('EARLY', 'LATE')))
) for values in ('PENDING', 'RUNNING')
with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
      autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
      autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

create table pgbroker.jobs_dead partition of pgbroker.jobs (
    primary key (job_id),
    constraint jobs_dead_reason check (last_error is not null and buried_at is not null),
    constraint jobs_dead_free check (claim is null and lease_until is null)
) for values in ('DEAD');

-- Every index is written on insert and on each change of status, so each must earn its place:
-- claims walk one lane (queue, priority) of this one in order; a job in the future lies outside the range
create index jobs_live_ready on pgbroker.jobs_live (queue, priority desc, run_after, job_id) where status = 'PENDING';
-- renewals, and the reaper's scan for leases that ran out; lease_until itself is not indexed, so renewals stay HOT
create index jobs_live_held on pgbroker.jobs_live (worker) where status = 'RUNNING';
-- a key is held by at most one live job of a queue
create unique index jobs_live_dedupe on pgbroker.jobs_live (queue, dedupe_key) where dedupe_key is not null;
-- expiry
create index jobs_live_expiry on pgbroker.jobs_live (expires_at) where status = 'PENDING' and expires_at is not null;
-- revoke, and operators who ask for a task
create index jobs_live_task on pgbroker.jobs_live (task_id);
create index jobs_dead_task on pgbroker.jobs_dead (task_id);
create index jobs_dead_queue on pgbroker.jobs_dead (queue, job_id);

-- job_history: a ring of daily partitions (slot = day number modulo 32), emptied by TRUNCATE when its turn comes, so
-- that pruning costs nothing and needs no DDL. Finished jobs without their bodies.
create table pgbroker.job_history (
    slot          smallint not null,
    job_id        bigint not null,
    enqueued_at   timestamptz not null,
    run_after     timestamptz,
    claimed_at    timestamptz,
    started_at    timestamptz,
    finished_at   timestamptz not null,
    status        pgbroker.job_status not null,
    priority      smallint not null,
    attempts      smallint not null,
    max_attempts  smallint not null,
    queue         text not null,
    task_id       text,
    task_name     text,
    worker        text,
    dedupe_key    text,
    last_error    text,
    result_state  text,
    result        text,
    constraint job_history_finished check (status in ('DONE', 'CANCELLED'))
) partition by list (slot);
create index job_history_job on pgbroker.job_history (job_id);
do $do$
begin
    for slot in 0..31 loop
        execute 'create table pgbroker.job_history_' || to_char(slot, 'FM00')
            || ' partition of pgbroker.job_history for values in (' || slot || ')';
    end loop;
end
$do$;

-- what went wrong on the way (lost, requeued, retried, revoked, buried); a normal life writes nothing here
create table pgbroker.job_events (
    event_id    bigint generated always as identity primary key,
    job_id      bigint not null,
    task_id     text,
    happened_at timestamptz not null default clock_timestamp(),
    kind        text not null,
    attempts    smallint not null,
    worker      text,
    detail      text
);
create index job_events_job on pgbroker.job_events (job_id);

-- one truth for all processes
create table pgbroker.settings (
    name  text primary key,
    value text
);
insert into pgbroker.settings values ('history_seconds', '86400'), ('dead_seconds', '2592000'), ('revoked_seconds', '10800');

-- tasks that must not run, whenever they are published or come back
create table pgbroker.revoked (
    task_id text primary key,
    until   timestamptz not null
);
-- the same for tasks that bear a stamp (Celery's stamped headers) of this value
create table pgbroker.revoked_stamps (
    header     text not null,
    value      jsonb not null,
    revoked_at timestamptz not null,
    until      timestamptz not null
);
-- a value may be longer than an index takes
create unique index revoked_stamps_value on pgbroker.revoked_stamps (header, md5(value::text));

-- ends that the broker made without Celery (reaped, expired, revoked, purged): written in the same transaction as the
-- end itself, delivered by any worker to the application's result backend, chords and errbacks. The whole message is
-- here, because chord and errbacks stand in its body.
create table pgbroker.outcome_outbox (
    outcome_id       bigint generated always as identity primary key,
    job_id           bigint not null,
    task_id          text,
    task_name        text not null,
    queue            text not null,
    outcome          text not null,
    detail           text not null,
    created_at       timestamptz not null default clock_timestamp(),
    taken_until      timestamptz,
    deliveries       smallint not null default 0,
    exchange         text,
    routing_key      text,
    content_type     text,
    content_encoding text,
    headers          text not null,
    properties       text,
    body             bytea not null,
    constraint outcome_outbox_outcome check (outcome in ('LOST', 'EXPIRED', 'REVOKED', 'PURGED'))
);
-- until it is delivered, an outcome counts as the task's result
create index outcome_outbox_task on pgbroker.outcome_outbox (task_id);

-- exchanges, queues and bindings
create table pgbroker.queues (
    name                 text primary key,
    arguments            text,
    paused_at            timestamptz,
    declared_at          timestamptz not null default clock_timestamp(),
    -- read out of the arguments: x-message-ttl, x-max-priority, x-dead-letter-exchange ('': the default exchange)
    ttl_seconds          real,
    max_priority         smallint,
    dead_letter_exchange text,
    dead_letter_key      text
);
create table pgbroker.exchanges (
    name        text primary key,
    type        text not null,
    durable     boolean not null default true,
    auto_delete boolean not null default false,
    arguments   text,
    constraint exchanges_type check (type in ('direct', 'topic', 'fanout', 'headers'))
);
-- AMQP has them in every broker, and kombu declares no exchange whose name begins so
insert into pgbroker.exchanges (name, type)
values ('amq.direct', 'direct'), ('amq.topic', 'topic'), ('amq.fanout', 'fanout'), ('amq.headers', 'headers'),
    ('amq.match', 'headers');
create table pgbroker.bindings (
    exchange    text not null,
    queue       text not null,
    routing_key text not null default '',
    -- for a topic exchange: the routing key as an anchored regular expression
    pattern     text,
    -- a JSON object with its keys in order; for a headers exchange: what is compared
    arguments   text not null default '{}',
    primary key (exchange, routing_key, queue, arguments)
);
create index bindings_queue on pgbroker.bindings (queue);

-- Queues whose messages are not jobs (exclusive, auto-delete, x-expires), and their messages. UNLOGGED: no WAL, gone
-- after a server crash, like the connections of everybody who used them.
create unlogged table pgbroker.transient_queues (
    name                 text primary key,
    arguments            text,
    owner                text,
    auto_delete          boolean not null default false,
    expires_seconds      real,
    ttl_seconds          real,
    max_length           integer,
    max_priority         smallint,
    dead_letter_exchange text,
    dead_letter_key      text,
    consumers            integer not null default 0,
    lives_until          timestamptz
);
-- usually empty: tells at once that no message of theirs has to be sent on when it expires
create index transient_queues_dead_letter on pgbroker.transient_queues (name) where dead_letter_exchange is not null;
create unlogged table pgbroker.mailbox (
    message_id       bigint generated always as identity primary key,
    queue            text not null,
    priority         smallint not null default 0,
    expires_at       timestamptz,
    -- a consumer had it and put it back
    redelivered      boolean not null default false,
    exchange         text,
    routing_key      text,
    content_type     text,
    content_encoding text,
    headers          text,
    properties       text,
    body             bytea not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index mailbox_queue on pgbroker.mailbox (queue, priority desc, message_id);

-- who is consuming what, kept alive together with the leases
create unlogged table pgbroker.consumers (
    worker      text not null,
    tag         text not null,
    queue       text not null,
    lives_until timestamptz not null,
    primary key (worker, tag)
);
create index consumers_queue on pgbroker.consumers (queue);

-- workers that found nothing, and the channel that wakes each
create sequence pgbroker.sleeper_id_seq as bigint;
create unlogged table pgbroker.sleepers (
    sleeper_id bigint not null default nextval('pgbroker.sleeper_id_seq'),
    queue      text not null,
    channel    text not null,
    until      timestamptz not null,
    primary key (channel, queue)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
create index sleepers_queue on pgbroker.sleepers (queue, sleeper_id);

-- results: `meta` is the result as Celery describes it, encoded by the application's result serializer
create table pgbroker.results (
    task_id    text primary key,
    status     text not null,
    meta       bytea not null,
    stored_at  timestamptz not null default clock_timestamp(),
    expires_at timestamptz
) with (fillfactor = 80);
create index results_expiry on pgbroker.results (expires_at) where expires_at is not null;
create table pgbroker.result_groups (
    group_id   text primary key,
    meta       bytea not null,
    expires_at timestamptz
);
create index result_groups_expiry on pgbroker.result_groups (expires_at) where expires_at is not null;

-- Chords that have not ended, and for an hour those that have. `returned` counts the rows of chord_parts; the chord is
-- complete when it reaches size + added. `structure` and `body` are encoded by the application's result serializer.
create table pgbroker.chords (
    group_id    text primary key,
    -- null: not known yet
    size        integer,
    -- members that joined while it ran (Celery's add_to_chord)
    added       integer not null default 0,
    returned    integer not null default 0,
    finished_at timestamptz,
    expires_at  timestamptz,
    -- how the header's results are nested, where they are
    structure   bytea,
    body        bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index chords_expiry on pgbroker.chords (expires_at) where expires_at is not null;
-- what the members of unfinished chords returned: a set, so one that runs twice counts once
create table pgbroker.chord_parts (
    group_id text not null,
    task_id  text not null,
    -- the member's place in the header
    position integer not null,
    -- in the order of arrival, for members of the same place
    number   integer not null,
    part     bytea not null,
    primary key (group_id, task_id, position)
);

-- Ids of calls that turned out to be duplicates after the id had been handed out (a plain apply_async, a member of a
-- group), and the task whose result is theirs, too. The newest row of an id counts; alias_id comes from the sequence
-- of the jobs, so that an id which is published once more as a job is known to be newer than its alias. No row is
-- unique by its task id and none is ever updated by a publish: so no publish waits for another's open transaction.
create table pgbroker.aliases (
    alias_id bigint not null default nextval('pgbroker.job_id_seq'),
    -- kept until then, and after that while there is something that it leads to; see expire_aliases()
    check_at timestamptz not null,
    task_id  text not null,
    leads_to text not null,
    primary key (task_id, alias_id)
);
create index aliases_check on pgbroker.aliases (check_at);

-- who waits for a result, and the channel that wakes it
create unlogged table pgbroker.waiters (
    task_id     text not null,
    channel     text not null,
    until       timestamptz not null,
    -- states on the way (STARTED, RETRY, an application's own) are wanted too, not only the end
    every_state boolean not null default false,
    -- the id that was asked for, this one or an alias of it; empty if it is too long to travel
    payload     text not null default '',
    primary key (task_id, channel, payload)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- what operators read: jobs, and the finished ones while history_seconds last
create view pgbroker.job_log as
select job_id, task_id, task_name, queue, status, priority, attempts, max_attempts, run_after, expires_at, enqueued_at,
       claimed_at, started_at, lease_until, worker, claim, dedupe_key, last_error,
       buried_at as finished_at, case when status = 'DEAD' then 'FAILURE' end as result_state, null::text as result
from pgbroker.jobs
union all
select job_id, task_id, task_name, queue, status, priority, attempts, max_attempts, run_after, null, enqueued_at,
       claimed_at, started_at, null, worker, null, dedupe_key, last_error,
       finished_at, result_state, result
from pgbroker.job_history
where finished_at > clock_timestamp()
    - make_interval(secs => (select value::double precision from pgbroker.settings where name = 'history_seconds'));
