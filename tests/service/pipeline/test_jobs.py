"""Jobs of the device thread: their order, their ends, and their share of its time."""

from __future__ import annotations

import asyncio

import pytest

from turbofno.service.pipeline.jobs import MOST_CHARGED_SECONDS, Job, Jobs


def test_jobs_run_in_order_without_those_that_nobody_wants() -> None:
    async def main() -> None:
        jobs, added = Jobs(), [Job(lambda: None) for _ in range(4)]
        for job in added:
            jobs.add(job)
        for job in added[:2]:
            job.outcome.cancel()
        assert [jobs.next(), jobs.next(), jobs.next()] == [*added[2:], None]
        assert not jobs

    asyncio.run(main())


def test_a_job_that_nobody_wants_any_more_may_end() -> None:
    async def main() -> None:
        for result in (1, ValueError("too late")):
            job: Job[int] = Job(lambda: 1)
            job.outcome.cancel()
            job.end(result, 0.5)
            assert job.outcome.cancelled()

    asyncio.run(main())


def test_each_job_that_waits_fails_with_an_error_of_its_own() -> None:
    """Raised to several callers, one error would collect the tracebacks of all."""

    async def main() -> None:
        jobs, added = Jobs(), [Job(lambda: None) for _ in range(2)]
        for job in added:
            jobs.add(job)
        jobs.fail_all(lambda: ValueError("the device is gone"))
        errors = [job.outcome.exception() for job in added]
        assert [str(error) for error in errors] == 2 * ["the device is gone"]
        assert errors[0] is not errors[1]
        assert not jobs

    asyncio.run(main())


def test_batches_catch_up_with_a_job() -> None:
    async def main() -> None:
        jobs, job = Jobs(), Job(lambda: None)
        jobs.add(job)
        assert jobs.note_batch(2.0) == 0.0, "batches get no credit"
        jobs.note_job(60.0)
        caught_up = [jobs.note_batch(0.75 * MOST_CHARGED_SECONDS)]
        assert not jobs.may_run
        assert jobs.next() is None
        caught_up.append(jobs.note_batch(MOST_CHARGED_SECONDS))
        assert caught_up == pytest.approx(
            [0.75 * MOST_CHARGED_SECONDS, 0.25 * MOST_CHARGED_SECONDS]
        )
        assert jobs.next() is job

    asyncio.run(main())
