"""The benchmark itself: does it count right, compare right, and clean up?"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import kombu
import pytest

from benchmarks import null_transport, postgres_target, records, report, rounds
from benchmarks.brokers import Broker, all_brokers, usable
from benchmarks.commands import Consume
from benchmarks.consume import CONSUME
from benchmarks.environment import Environment
from benchmarks.figures import Summary, ratio, summarise
from benchmarks.measurement import Measurement, Sample, Settings
from benchmarks.processes import end, python_process
from benchmarks.publish import PUBLISH
from benchmarks.records import Recorder, task_id, task_ids
from benchmarks.table import aligned


def null_broker() -> Broker:
    return next(broker for broker in all_brokers("pgbroker://") if broker.name == "null")


class TestNullTransport:
    @pytest.fixture
    def channel(self):
        null_transport.register()
        with kombu.Connection("null://") as connection:
            channel = connection.default_channel
            yield channel
            channel.queue_delete("q")

    def consume(self, channel, count, window):
        message = channel.prepare_message("[[], {}, {}]", headers={"id": "template", "task": "t"}, properties={})
        channel.basic_publish(message, exchange="q", routing_key="q")
        null_transport.load("q", task_ids(1, count))
        received = []
        channel.basic_qos(0, window, False)
        channel.basic_consume("q", callback=received.append, consumer_tag="c")
        return received

    def test_gives_out_no_more_than_the_window(self, channel):
        received = self.consume(channel, count=10, window=4)
        assert channel.deliver() == 4
        assert channel.deliver() == 0
        received[0].ack()
        received[1].reject()
        assert channel.deliver() == 2
        assert len(received) == 6

    def test_gives_every_message_once_and_then_nothing(self, channel):
        received = self.consume(channel, count=10, window=3)
        while channel.deliver():
            for message in received:
                if not message.acknowledged:
                    message.ack()
        assert [message.headers["id"] for message in received] == list(task_ids(1, 10))
        assert [message.properties["correlation_id"] for message in received] == list(task_ids(1, 10))

    def test_redelivers_what_was_requeued(self, channel):
        received = self.consume(channel, count=2, window=1)
        channel.deliver()
        received[0].requeue()
        channel.deliver()
        assert received[1].headers["id"] == received[0].headers["id"]

    def test_drains_without_event_loop(self, channel):
        received = self.consume(channel, count=2, window=2)
        channel.connection.drain_events(timeout=0)
        assert len(received) == 2
        channel.connection.drain_events(timeout=0)  # takes the wake-up of basic_consume
        with pytest.raises(TimeoutError):
            channel.connection.drain_events(timeout=0.01)

    def test_needs_a_template(self):
        with pytest.raises(LookupError, match="publish one message to 'never-published'"):
            null_transport.load("never-published", ["x"])


class TestRecords:
    def record(self, path: Path, *numbers: int, run: int = 0xFEDCBA98) -> None:
        recorder = Recorder(str(path))
        for number in numbers:
            recorder(task_id(run, number))

    def test_a_run_of_every_task_has_no_flaw(self, tmp_path):
        self.record(tmp_path / "r", 2, 0, 1)
        self.record(tmp_path / "r", 0, 1, run=5)
        result = records.evaluate(tmp_path / "r", 0xFEDCBA98, 3)
        assert result.flaw is None
        assert 0 < result.first <= result.last
        assert records.count(tmp_path / "r") == 5

    def test_finds_missing_and_repeated_tasks_even_if_the_number_fits(self, tmp_path):
        self.record(tmp_path / "r", 0, 1, 1)
        result = records.evaluate(tmp_path / "r", 0xFEDCBA98, 3)
        assert (result.missing, result.repeated) == (1, 1)
        assert result.flaw == "1 tasks never ran, 1 runs too many"

    def test_no_file_is_a_run_of_nothing(self, tmp_path):
        assert records.count(tmp_path / "r") == 0
        assert records.evaluate(tmp_path / "r", 1, 3).flaw == "3 tasks never ran"

    def test_ids_are_unique_within_and_between_runs(self):
        ids = [*task_ids(1, 1000), *task_ids(2, 1000)]
        assert len(set(ids)) == 2000
        assert {len(identity) for identity in ids} == {36}


class TestFigures:
    def test_flawed_samples_do_not_count(self):
        summary = summarise([Sample(10.0, None, 5.0), Sample(1000.0, "2 tasks never ran"), Sample(30.0, None, 7.0)])
        assert summary == Summary(20.0, 10.0, 30.0, 6.0, 2, ("2 tasks never ran",))
        assert summary.taken == 3

    def test_ratio_is_ours_over_theirs(self):
        assert ratio(summarise([Sample(30.0)]), summarise([Sample(20.0)])) == 1.5

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [(None, [Sample(1.0)]), ([Sample(1.0, "bad")], [Sample(1.0)]), ([Sample(1.0)], [Sample(1.0, "bad")])],
    )
    def test_no_ratio_without_two_figures(self, ours, theirs):
        assert ratio(None if ours is None else summarise(ours), summarise(theirs)) is None


def fake_measurement(run) -> Measurement:
    return Measurement("fake", "A fake", "things/s", run, lambda broker: broker.consumes)


class TestReport:
    def test_columns_are_aligned(self):
        assert aligned(("name", "rate"), [("a", "1,000"), ("longer", "5")]).splitlines() == [
            "name     rate",
            "------  -----",
            "a       1,000",
            "longer      5",
        ]

    def test_table_has_ratios_and_says_what_is_wrong(self):
        samples = {
            "pgbroker": [Sample(1500.0), Sample(1700.0)],
            "redis": [Sample(800.0), Sample(9.0, "left")],
            "x": [Sample(1.0, "boom")],
        }
        text = report.measurement_text(fake_measurement(None), samples)
        assert [line.split() for line in text.splitlines()[4:7]] == [
            ["pgbroker", "1,600", "1,500", "1,700", "-", "2"],
            ["redis", "800", "800", "800", "-", "1", "of", "2", "2.00", "x"],
            ["x", "WRONG", "-", "-", "-", "0", "of", "1"],
        ]
        assert text.splitlines()[7:] == ["WRONG redis: left", "WRONG x: boom"]

    def test_document_is_written_as_json(self, tmp_path):
        samples = {"pgbroker": [Sample(3.0)], "redis": [Sample(2.0)]}
        document = report.as_document({"cores": "2"}, Settings(), [(fake_measurement(None), samples)])
        read = json.loads(report.write(document, tmp_path / "results").read_text())
        assert read["settings"]["tasks"] == 5000
        assert read["measurements"]["fake"]["brokers"]["redis"]["ratio_of_pgbroker"] == 1.5
        assert read["measurements"]["fake"]["brokers"]["pgbroker"]["samples"][0]["value"] == 3.0


class TestRounds:
    def test_brokers_take_turns(self):
        brokers = [one for one in all_brokers("pgbroker://") if one.name.startswith(("rabbitmq", "redis"))]
        turns: list[str] = []

        def run(broker, settings):
            turns.append(broker.name)
            return Sample(float(len(turns)))

        samples = rounds.take(fake_measurement(run), brokers, Settings(), 2, lambda line: None)
        assert turns == ["rabbitmq", "redis", "rabbitmq", "redis"]
        assert [sample.value for sample in samples["redis"]] == [2.0, 4.0]

    def test_a_broker_that_does_not_answer_is_left_out_with_a_line(self):
        said: list[str] = []
        dead = Broker("dead", "redis://127.0.0.1:1/0", str)
        assert [one.name for one in usable([dead, null_broker()], said.append)] == ["null"]
        assert len(said) == 1
        assert said[0].startswith("dead is left out: ")


class TestProcesses:
    def test_one_that_does_not_obey_is_killed(self, tmp_path):
        stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        with python_process(["-c", stubborn], Environment(), log=tmp_path / "log", stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            assert end(process, seconds=0.1) is False
        assert process.returncode == -signal.SIGKILL

    def test_one_is_ended_when_the_benchmark_is_interrupted(self, tmp_path):
        def interrupted():
            with python_process(["-c", "import time; time.sleep(60)"], Environment(), log=tmp_path / "log") as process:
                started.append(process)
                raise KeyboardInterrupt

        started: list[subprocess.Popen[bytes]] = []
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert started[0].returncode == -signal.SIGTERM

    def test_settings_and_commands_survive_the_way(self):
        environment = Environment("redis://h/1", {"a": 1}, ("q", "r"), "/r", 7)
        assert Environment.from_variables(environment.as_variables()) == environment
        command = Consume("q", 4_000_000_000, 5)
        assert Consume.decode(command.encode().strip()) == command


class TestTarget:
    def test_the_url_given_wins_over_the_environment(self, monkeypatch):
        from contextlib import ExitStack

        monkeypatch.setenv("PGBROKER_BENCH_URL", "pgbroker://from-environment/x")
        with ExitStack() as cleanup:
            assert postgres_target.resolve("pgbroker://given/x", cleanup) == "pgbroker://given/x"
            assert postgres_target.resolve(None, cleanup) == "pgbroker://from-environment/x"


class TestWithAWorker:
    def test_every_task_runs_exactly_once(self):
        samples = rounds.take(CONSUME, [null_broker()], Settings(tasks=400), 1, lambda line: None)
        (sample,) = samples["null"]
        assert sample.flaw is None
        assert sample.value > 0
        assert sample.cpu_us is not None

    def test_publishing_is_timed(self):
        sample = PUBLISH.run(null_broker(), Settings(tasks=400))
        assert sample.flaw is None
        assert sample.value > 0
