"""The mutants: which rule each leaves out, where, and which check catches it.

A mutant is a piece of the source and what stands there instead. The piece must occur exactly once: if the code has
changed, applying it fails, and somebody has to look whether the rule is still there (test_mutants.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SIMULATOR = "simulator"
"""The check that runs thousands of small worlds; the others are names of tests."""


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    """The rule that it leaves out."""
    file: str
    old: str
    new: str
    check: str = SIMULATOR

    def apply(self, root: Path) -> None:
        """Changes the copy of the source that is in this folder."""
        path = root / "src" / "recruiter" / self.file
        text = path.read_text() if path.exists() else ""
        found = text.count(self.old)
        if found != 1:
            raise LookupError(
                f"mutant {self.name}: its piece of {self.file} occurs {found} times, not once. If the code has "
                f"changed, write the mutant anew; if the rule is gone, something is wrong:\n{self.old}"
            )
        path.write_text(text.replace(self.old, self.new))


_TRANSACTIONS, _ROSTER, _LEAD = "store/transactions.py", "store/collections/roster.py", "steps/lead.py"
_SCHEDULED, _HELD = "store/collections/scheduled.py", "processes/worker/held_jobs.py"
_IN_SESSION, _RUNS = "store/in_session.py", "store/runs.py"

MUTANTS = (
    # -- producing
    Mutant(
        "writes_unrepeated",
        "an enqueue that meets a failover is repeated on the new primary",
        "store/connection.py",
        "        retryWrites=True,\n",
        "        retryWrites=False,\n",
        "tests/processes/test_producing_in_a_failover.py::test_a_step_down_under_load_costs_time_and_no_job",
    ),
    # -- leading
    Mutant(
        "no_term_raise",
        "a new leader raises the term on every worker",
        _LEAD,
        "        self._store.roster.raise_term(mine.term)\n",
        "",
        "tests/steps/test_lead.py::test_an_old_leader_cannot_assign",
    ),
    Mutant(
        "unknown_keeps_term",
        "an assignment of unknown outcome costs the term",
        _LEAD,
        "        self._doubted = True\n",
        "        pass\n",
        "tests/steps/test_lead.py::test_doubt_ends_the_term",
    ),
    Mutant(
        "assign_any_term",
        "an assignment matches only where no newer term stands",
        _ROSTER,
        '                {"_id": worker, "ready": True, "term": {"$lte": term}},\n',
        '                {"_id": worker, "ready": True},\n',
        "tests/store/test_roster_protocol.py::TestJoining::test_it_becomes_ready_with_the_newest_term",
    ),
    Mutant(
        "ready_before_term",
        "a worker is not ready before it knows the newest term",
        _ROSTER,
        'fresh = {"ready": False,',
        'fresh = {"ready": True,',
        "tests/store/test_roster_protocol.py::TestJoining::test_a_worker_that_joined_is_not_ready",
    ),
    Mutant(
        "holder_per_process",
        "the holder in the lease is unique to an attempt",
        _LEAD,
        "        attempt = secrets.token_hex(8)  # new each time: see store/collections/leases.py\n",
        '        attempt = f"{socket.gethostname()}:{os.getpid()}"\n',
        "tests/steps/test_lead.py::test_every_attempt_has_a_holder_of_its_own",
    ),
    Mutant(
        "lease_unfenced",
        "what only the leader may do proves the term",
        "store/collections/leases.py",
        "        return self.collection.update_one(_same(term, holder), _TOUCH, session=session).matched_count == 1\n",
        "        return True\n",
        "tests/steps/test_repeat.py::TestOccurrences::test_a_leader_that_was_deposed_makes_none",
    ),
    Mutant(
        "dead_leaders_session",
        "a new leader ends the session of the dead one",
        _LEAD,
        "            self._store.transactions.end_session_of(seen.session)",
        "            pass",
        "tests/processes/test_dead_in_a_transaction.py::test_the_lead_of_one_who_died_in_a_transaction_is_taken_over_within_the_lease",
    ),
    Mutant(
        "seldom_is_silent",
        "a leader that renews its lease seldom is given the time that it has said",
        _LEAD,
        "_RENEWALS * seen.every if isinstance(seen, Lease) else 0.0",
        "0.0",
        "tests/steps/test_lead.py::test_a_leader_that_renews_seldom_is_not_taken_for_silent",
    ),
    Mutant(
        "watchers_unheard",
        "a leader renews its lease often while another recruiter watches it",
        _LEAD,
        "            self.interval = self._quick if renewed.watched else self._seldom\n",
        "            self.interval = self._seldom\n",
        "tests/steps/test_lead.py::test_a_lease_that_nobody_watches_is_renewed_less_often",
    ),
    # -- assigning
    Mutant(
        "arrivals_of_any_age",
        "a job is given from its event only if its insert is later than all that the leader has written",
        "domain/planning/arrivals.py",
        "        return 0 < floor < self.at\n",
        "        return True\n",
        "tests/property/test_arrivals_protocol.py::test_an_insert_from_before_the_term_is_not_used",
    ),
    Mutant(
        "archiving_keeps_the_floor",
        "what the leader has archived may be inserted again, and is then no new job",
        "steps/assign.py",
        "    return max(store.roster.answered_at, store.transactions.answered_at)\n",
        "    return store.roster.answered_at\n",
        "tests/property/test_arrivals_protocol.py::test_archiving_a_cancelled_job_moves_the_floor",
    ),
    Mutant(
        "changes_arrive",
        "only an insert brings a new job: one that was updated may be held",
        "store/change_stream.py",
        """    if event.get("operationType") != "insert" or not is_job_id(id):\n""",
        "    if not is_job_id(id):\n",
        "tests/property/test_arrivals_protocol.py::test_only_inserts_count",
    ),
    Mutant(
        "arrivals_uncounted",
        "a job under a limit is not given from its event",
        "domain/planning/arrivals.py",
        "    return not meter.counts(Lane.parse(lane))\n",
        "    return True\n",
        "tests/steps/test_assign_new.py::test_only_jobs_that_may_run_anywhere_at_once",
    ),
    Mutant(
        "slow_jobs_prefetched",
        "jobs that take long are not prefetched",
        "domain/planning/prefetch.py",
        "        self.prefetch = min(self._most, int(self._rate * HORIZON))\n",
        "        self.prefetch = min(self._most, 1 + int(self._rate * HORIZON))\n",
        "tests/unit/test_throughput.py",
    ),
    Mutant(
        "buffers_first",
        "free slots are filled before any buffer",
        "domain/planning/assign.py",
        "        for slots in (free, spare):\n",
        "        for slots in (spare, free):\n",
        "tests/unit/test_assignment.py::TestDealing::test_free_slots_before_buffers",
    ),
    Mutant(
        "buffers_for_one",
        "a job with a limit takes no buffer from ordinary jobs that come before it",
        "domain/planning/pack.py",
        "        if not room.queued and room.host.lacks(",
        "        if room.host.lacks(",
        "tests/unit/test_packing.py::TestBuffers::test_who_comes_after_one_that_can_has_its_turn_later",
    ),
    # -- settling
    Mutant(
        "settle_unfenced",
        "a worker that is off the roster settles nothing",
        _TRANSACTIONS,
        '                raise Superseded(f"worker {worker} is no longer on the roster; its results were dropped")\n',
        "                self._write(batch, session)\n                return Holding([], 0)\n",
        "tests/store/test_transactions.py::TestSettle::test_a_retired_worker_writes_nothing",
    ),
    Mutant(
        "settle_not_held",
        "an outcome is written only of a job that is held",
        _TRANSACTIONS,
        "            self._write(batch if released.held is None else batch.only(released.held), session)\n",
        "            self._write(batch, session)\n",
        "tests/store/test_holds.py::TestSettling::test_nothing_is_written_of_a_job_that_is_not_held",
    ),
    Mutant(
        "delete_apart",
        "a job leaves `scheduled` in the transaction that archives it",
        _TRANSACTIONS,
        '            scheduled.delete_many({"_id": {"$in": [*batch.archive, *batch.forget]}}, session=session)\n',
        '            scheduled.delete_many({"_id": {"$in": [*batch.archive, *batch.forget]}})\n',
    ),
    Mutant(
        "counted_apart",
        "what goes into the archive is counted in the same transaction",
        "store/collections/statistics.py",
        "        if few:\n            self.collection.bulk_write(few, ordered=False, session=session)\n",
        "        if few:\n            self.collection.bulk_write(few, ordered=False)\n",
    ),
    Mutant(
        "attempts_unchecked",
        "a job is rescheduled only as long as its attempts have not moved",
        _TRANSACTIONS,
        '    query: Document = {"_id": job.id, "attempts": job.attempts}\n',
        '    query: Document = {"_id": job.id}\n',
        "tests/store/test_transactions.py::TestSettle::test_an_outcome_of_an_earlier_attempt_changes_nothing",
    ),
    Mutant(
        "cancelled_comes_back",
        "a job that was cancelled meanwhile does not come back to a lane",
        _TRANSACTIONS,
        '        aside = {"$in": list(ASIDE)}\n',
        '        aside = {"$in": ["/blocked"]}\n',
        "tests/store/test_transactions.py::TestSettle::test_a_job_cancelled_meanwhile_does_not_come_back_to_a_lane",
    ),
    Mutant(
        "held_step_comes_back",
        "a step whose flow was paused meanwhile does not come back to a lane",
        _TRANSACTIONS,
        '        aside = {"$in": list(ASIDE)}\n',
        '        aside = {"$in": ["/cancelled"]}\n',
        "tests/steps/test_flow_rules.py",
    ),
    Mutant(
        "sessions_destroy",
        "a connection without sessions says nothing about the document",
        "store/errors.py",
        "        return Meaning.RECONNECT  # of a connection",
        "        return Meaning.BAD_DOCUMENT  #",
        "tests/store/test_connection.py::test_outcomes_survive_a_connection_without_sessions",
    ),
    Mutant(
        "interrupted_destroys",
        "an ended session says nothing about the document",
        "store/errors.py",
        "    *(11601, 206, 225, 251, 256, 267),  # its session or transaction was ended\n",
        "    *(206, 225, 251, 256, 267),\n",
        "tests/unit/test_meaning.py::test_what_passes_is_tried_again",
    ),
    # -- holding
    Mutant(
        "late_hand_back",
        "a hand back names the number of releases that it has seen",
        _ROSTER,
        'released = self.release(worker, ids, None, {}, Seen(found["settled"], found["given"], 0))',
        "released = self.release(worker, ids, None, {})",
        "tests/store/test_holds.py::TestHandingBack::test_one_that_arrives_late_does_not_take_a_job_that_was_given_again",
    ),
    Mutant(
        "mark_unproved",
        "an at-most-once job is marked only by the worker that holds it",
        _TRANSACTIONS,
        "            mine = [id for id in ids if id in held]\n",
        "            mine = list(ids)\n",
        "tests/store/test_holds.py::TestMarking::test_one_that_is_not_held_is_not_marked",
    ),
    Mutant(
        "marked_twice",
        "an at-most-once job that is marked does not start again",
        _SCHEDULED,
        '            {"_id": {"$in": list(ids)}, "started_by": None, "lane": {"$ne": CANCELLED_LANE}},\n',
        '            {"_id": {"$in": list(ids)}, "lane": {"$ne": CANCELLED_LANE}},\n',
        "tests/store/test_holds.py::TestMarking::test_the_first_to_mark_may_start",
    ),
    Mutant(
        "mark_stays",
        "an at-most-once job that did not start is handed back without its mark",
        _HELD,
        "self._outcomes.append((id, _unmarked(marked) if marked and outcome is None else outcome))",
        "self._outcomes.append((id, outcome))",
        "tests/unit/test_held_jobs.py::TestAtMostOnce::test_one_that_goes_back_loses_its_mark",
    ),
    Mutant(
        "old_lists_believed",
        "an answer that is older than the last release is ignored",
        _HELD,
        "        if holding.settled < self._settled or holding.given < self._given:\n            return []\n",
        "",
        "tests/unit/test_held_jobs.py::TestAnswers::test_an_old_one_does_not_bring_back_what_was_released",
    ),
    Mutant(
        "forgotten_when_sent",
        "a job stays known until its release is answered",
        _HELD,
        "            self._states.update((id, HeldState.SETTLING) for id, _ in batch)\n",
        "            for id, _ in batch:\n                self._states.pop(id, None)\n",
        "tests/unit/test_held_jobs.py::TestAnswers::test_one_that_comes_while_a_job_is_released_does_not_bring_it_back",
    ),
    Mutant(
        "named_twice",
        "a job that the list names twice starts once",
        _HELD,
        "        new = dict.fromkeys((id for id in ids if id not in states), HeldState.ASSIGNED)\n"
        "        states.update(new)\n",
        "        new = [id for id in ids if id not in states]\n"
        "        states.update(dict.fromkeys(new, HeldState.ASSIGNED))\n",
        "tests/unit/test_held_jobs.py::TestAnswers::test_a_job_that_is_named_twice_is_fetched_once",
    ),
    Mutant(
        "sure_of_unknown_releases",
        "while the outcome of a release is unknown, the worker does not take for granted that it holds its jobs",
        _HELD,
        "            known = self._count is not None and not self._unsure\n",
        "            known = self._count is not None\n",
        "tests/unit/test_held_jobs_news.py::TestTheNewPart::test_after_a_release_of_unknown_outcome_all_must_be_read",
    ),
    Mutant(
        "any_event",
        "an event that is not newer than the last release is ignored",
        _HELD,
        "assignment.worker != self.worker or assignment.given <= self._given_at_release:",
        "assignment.worker != self.worker:",
        "tests/unit/test_held_jobs_news.py::TestEvents::test_one_that_was_overtaken_by_the_end_of_its_job_is_ignored",
    ),
    Mutant(
        "other_registration",
        "events count only for the registration that they name",
        _HELD,
        "assignment.worker != self.worker or assignment.given <= self._given_at_release:",
        "assignment.given <= self._given_at_release:",
        "tests/unit/test_held_jobs_news.py::TestEvents::test_one_of_a_former_registration_is_ignored",
    ),
    Mutant(
        "release_whatever_was_seen",
        "a release takes a hold for granted only if nothing was released since the list was seen",
        _ROSTER,
        '            query["settled"] = seen.settled\n',
        "",
        "tests/store/test_roster_news.py::TestSettling::test_after_another_release_the_list_is_read_and_nothing_is_written_that_is_not_held",
    ),
    Mutant(
        "read_locally",
        "a worker starts only what a majority of the nodes knows",
        _ROSTER,
        '        found = self._agreed.find_one({"_id": worker}, _HOLDING)\n',
        '        found = self.collection.find_one({"_id": worker}, _HOLDING)\n',
        "tests/store/test_majority.py::test_an_assignment_that_only_the_primary_knows_is_not_seen",
    ),
    # -- retiring
    Mutant(
        "retired_alive",
        "a worker that has shown life since stays on the roster",
        _ROSTER,
        'found = self._raw.find_one_and_delete({"_id": seen[0], "beats": seen[1]}, session=session)',
        'found = self._raw.find_one_and_delete({"_id": seen[0]}, session=session)',
        "tests/store/test_transactions.py::TestRetire::test_a_worker_that_showed_life_stays",
    ),
    Mutant(
        "no_session_kill",
        "the session of a dead process is ended, so that its locks go",
        _TRANSACTIONS,
        "            self.sessions.end(session)\n",
        "            pass\n",
        "tests/processes/test_dead_in_a_transaction.py::test_a_dead_worker_is_retired_at_once_when_it_is_time",
    ),
    Mutant(
        "lost_at_most_once_runs",
        "an at-most-once job of a dead worker is lost rather than run again",
        "store/outcomes.py",
        '        at_most_once=bool(document.get("at_most_once")),\n',
        "        at_most_once=False,\n",
        "tests/steps/test_rescue.py::test_an_at_most_once_job_is_lost_rather_than_run_again",
    ),
    Mutant(
        "observer_decides_death",
        "a worker is dead after the time that it declares itself, whatever the observer is set to",
        "steps/rescue.py",
        "        return self._undeclared if declared is None else declared\n",
        "        return self._undeclared\n",
        "tests/steps/test_rescue.py::test_a_worker_that_declares_its_time_is_retired_after_that_time",
    ),
    # -- repeating, limits
    Mutant(
        "occurrence_apart",
        "an occurrence and its scheduler are written together",
        _TRANSACTIONS,
        "            self._scheduled.collection.insert_many(list(by_id.values()), session=session)\n",
        "            self._scheduled.collection.insert_many(list(by_id.values()))\n",
    ),
    Mutant(
        "scheduler_unseen",
        "occurrences are made only of a scheduler that is as it was seen",
        "store/collections/schedulers.py",
        '    return {"_id": seen.urn, "handled": seen.handled, "revision": seen.revision or {"$in": [None, 0]}}\n',
        '    return {"_id": seen.urn}\n',
        "tests/steps/test_unreadable_lease.py::test_a_scheduler_that_is_changed_during_a_look_keeps_its_new_definition",
    ),
    Mutant(
        "limit_counted_twice",
        "a job counts once against a limit, however often it is noted",
        "store/roster_fields.py",
        '        metered=tuple(dict(field.array({"metered": [], **document}, "metered", _metered)).items()),\n',
        '        metered=tuple(field.array({"metered": [], **document}, "metered", _metered)),\n',
        "tests/steps/test_limits_counted.py::test_a_job_that_is_noted_twice_counts_once",
    ),
    Mutant(
        "limit_forgets_held",
        "a limit counts the jobs that are held",
        "steps/assign.py",
        "        for each in holders:\n            self._meter.take(each.lane, each.id)\n",
        "        holders = []\n",
    ),
    Mutant(
        "starts_unnoted",
        "what a rate allows is counted before it is given",
        "steps/assign.py",
        "        if packing.starts:\n",
        "        if False:\n",
    ),
    Mutant(
        "recovered_twice",
        "a job that was recovered is not recovered again",
        _TRANSACTIONS,
        "**({} if again else fresh)}",
        "}",
    ),
    # -- looking ahead
    Mutant(
        "lookahead_for_good",
        "jobs that an earlier round has found are forgotten when the term, a rule or the kind of worker changes",
        "domain/planning/lookahead.py",
        "            and basis == self._basis\n",
        "",
        "tests/steps/test_lookahead.py",
    ),
    Mutant(
        "lookahead_given_twice",
        "a job that is given from the list of the next ones leaves it",
        "domain/planning/lookahead.py",
        "        taken, self._jobs = self._jobs[:count], self._jobs[count:]\n",
        "        taken = self._jobs[:count]\n",
        "tests/steps/test_lookahead.py",
    ),
    # -- flows
    Mutant(
        "released_early",
        "a step starts when all steps that it waits for have ended",
        "domain/flow.py",
        "    if any(state is StepState.PENDING for state in found.values()):\n",
        "    if found and all(state is StepState.PENDING for state in found.values()):\n",
        "tests/unit/test_flow_graph.py",
    ),
    Mutant(
        "failures_stop",
        "a step does not start if one that it waits for has failed",
        "domain/flow.py",
        "    if any(state in _BAD for each, state in found.items() if each not in step.any):\n",
        "    if any(state is StepState.GONE for each, state in found.items() if each not in step.any):\n",
        "tests/steps/test_flows.py::TestReleasing::test_a_failure_archives_what_depends_on_it",
    ),
    Mutant(
        "ends_repeated",
        "a step that waits for the end of its flow runs once, also if the flow goes on and ends again",
        "domain/flow.py",
        "    return [on for on in wanted if on not in run]\n",
        "    return wanted\n",
        "tests/steps/test_flows.py::TestTheEnd::test_failure_then_recovery_runs_each_once",
    ),
    Mutant(
        "markers_removed_unlooked",
        "a marker stays until the leader has looked where it says",
        "steps/release.py",
        "            yield from look.at(marker)\n",
        "            store.flows.remove_markers([each.id for each in found if each.flow == flow])\n"
        "            yield from look.at(marker)\n",
        "tests/steps/test_flows.py::TestReleasing::test_what_is_left_of_a_look_that_took_long_enough_is_done_by_the_next",
    ),
    Mutant(
        "one_flow_stops_all",
        "a flow that cannot be processed keeps no other flow from being processed",
        "steps/release.py",
        "            yield Released(broken=[(flow, error)])\n",
        "            raise error\n",
        "tests/steps/test_flow_damage.py::test_other_flows_go_on_and_the_log_stays_short",
    ),
    Mutant(
        "batches_unbounded",
        "a batch of jobs that are archived is bounded in bytes",
        "store/batches.py",
        "        if room <= 0:\n",
        "        if room is None:\n",
        "tests/steps/test_flow_damage.py::test_cancelled_jobs_are_archived_in_batches_of_few_bytes",
    ),
    Mutant(
        "released_although_held",
        "a step that was held since the leader has decided is not released",
        "store/flow_steps.py",
        """{"lane": BLOCKED_LANE, "flow.held": {"$not": {"$gt": holds}}}""",
        """{"lane": BLOCKED_LANE}""",
        "tests/steps/test_flow_rules.py::test_a_story_ends_well",
    ),
    Mutant(
        "held_for_good",
        "steps that were held late, after their flow was resumed, are looked at again",
        "store/collections/flows.py",
        "            self.markers.insert_one(marker_document(Marker(id, all=True)))\n",
        "            pass\n",
        "tests/steps/test_flow_rules.py::test_a_story_ends_well",
    ),
    Mutant(
        "cancels_unnumbered",
        "a late cancel leaves the jobs that were stored after it",
        "store/flow_steps.py",
        """{**_to_cancel(flow), "flow.cancels": {"$not": {"$gte": cancels}}}""",
        "_to_cancel(flow)",
        "tests/steps/test_flow_changes.py::test_a_story_ends_well",
    ),
    Mutant(
        "ends_cancelled",
        "a cancel leaves the steps that wait for the end of the flow",
        "store/flow_steps.py",
        """{"flow.id": flow, "flow.on": None, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}""",
        """{"flow.id": flow, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}""",
        "tests/steps/test_flow_changes.py::test_a_story_ends_well",
    ),
    Mutant(
        "flow_untouched",
        "a transaction that adds or recovers a step writes the flow: a cleaner that forgets the flow conflicts",
        "store/collections/flows.py",
        """GO_ON: Document = {**TOUCH, "$unset": {"ended": ""}}""",
        """GO_ON: Document = {"$unset": {"untouched": ""}}""",
        "tests/steps/test_flow_changes.py::test_a_story_ends_well",
    ),
    Mutant(
        "old_end_stays",
        "a flow that had ended and gets another step is concluded anew",
        "store/collections/flows.py",
        """UNCANCEL: Document = {**TOUCH, "$unset": {"ended": "", "cancel": ""}}""",
        """UNCANCEL: Document = {**TOUCH, "$unset": {"cancel": ""}}""",
        "tests/steps/test_flow_changes.py::test_a_story_ends_well",
    ),
    Mutant(
        "paused_steps_start",
        "a worker does not start a step whose flow was paused after the leader had assigned it",
        "processes/worker/held_jobs.py",
        "not job.cancelled and not job.is_paused and not doubtful",
        "not job.cancelled and not doubtful",
        "tests/steps/test_flow_rules.py::test_a_story_ends_well",
    ),
    Mutant(
        "wide_steps_unfound",
        "a step that waits for more than twenty is looked at when one of these has failed",
        "store/flow_steps.py",
        """{"$in": [*some, marker.flow]}""",
        """{"$in": some}""",
        "tests/steps/test_flow_rules.py::test_a_story_ends_well",
    ),
    # -- effects exactly once
    Mutant(
        "token_unproved",
        "the token of a run is written together with a write on the roster that proves the hold",
        _TRANSACTIONS,
        "            if not self._roster.prove(worker, id, session):\n",
        "            if not worker:\n",
        "tests/steps/test_runs.py::test_who_does_not_hold_the_job_gets_none",
    ),
    Mutant(
        "retired_with_token",
        "retiring, crashing and handing back remove the token of a run",
        "store/job_fields.py",
        '("started_by", "token", "transaction", *LOCK)',
        '("started_by", *LOCK)',
        "tests/steps/test_runs.py::test_retiring_the_worker_takes_it",
    ),
    Mutant(
        "fence_without_token",
        "a job's own transaction takes the job only with the token of its run",
        "store/job_transaction.py",
        '{"_id": run.id, "token": run.token}',
        '{"_id": run.id}',
        "tests/steps/test_job_transaction.py::TestLost::test_retired_between_its_proof_and_its_transaction",
    ),
    Mutant(
        "signal_missed",
        "a job that decides to wait for a signal is due at once if it has come meanwhile",
        _TRANSACTIONS,
        "    if job.signal is not None:\n",
        "    if False:\n",
        "tests/steps/test_checkpoints.py::TestWaitFor::test_a_signal_may_come_while_it_runs_before_it_waits",
    ),
    Mutant(
        "debounced_unmarked",
        "a debounced job is marked before it starts, and starts as it is then",
        _HELD,
        "        return self.at_most_once or self.debounced_until is not None\n",
        "        return self.at_most_once\n",
        "tests/steps/test_unique.py::TestDebounce::test_what_changes_between_the_assignment_and_the_start_is_not_lost",
    ),
    # -- changing
    Mutant(
        "put_off_unseen",
        "a worker hands back a job that a person has put off after the leader found it",
        "processes/worker/fetcher.py",
        "[job for job in jobs if at_any_time or not job.is_postponed(soon)]",
        "list(jobs)",
        "tests/blackbox/test_changing_jobs.py::test_a_job_whose_reschedule_was_acknowledged_does_not_run_before",
    ),
    Mutant(
        "change_unconfirmed",
        "a job that a worker took while a person put it off keeps its time, and the person is refused",
        "store/changes.py",
        "if changed and change.postpones else changed",
        "if not changed else changed",
        "tests/steps/test_change.py::test_a_change_is_undone_when_a_worker_takes_the_job_in_this_moment",
    ),
    Mutant(
        "begun_unasked",
        "a call with the key of a job that has begun leaves that job alone",
        _IN_SESSION,
        "    begun = begun_at(job)\n",
        "    begun = None\n",
        "tests/blackbox/test_begun_jobs.py::TestDebounce::test_a_job_that_sleeps_is_neither_postponed_nor_replaced",
    ),
    Mutant(
        "met_untouched",
        "a caller's transaction touches the job that it met: the start of the job conflicts with it",
        _IN_SESSION,
        "                    yield from self._touch(decision.id)\n",
        "                    pass\n",
        "tests/blackbox/test_begun_jobs.py::TestUntilStarted::test_a_change_in_the_callers_transaction_is_seen",
    ),
    Mutant(
        "flag_is_the_end",
        "a cancelled job has not ended while a worker holds it",
        _IN_SESSION,
        "    exists = lane is not None and (lane != CANCELLED_LANE or is_held)\n",
        "    exists = lane is not None and lane != CANCELLED_LANE\n",
        "tests/blackbox/test_begun_jobs.py::TestUnique"
        "::test_a_job_that_was_cancelled_while_it_runs_counts_until_it_has_stopped",
    ),
    Mutant(
        "two_tokens",
        "the threads of one run share one token",
        _RUNS,
        "        with self._proving:\n",
        "        if True:\n",
        "tests/steps/test_runs.py::test_threads_of_one_run_get_the_same_one",
    ),
    Mutant(
        "timeout_takes_a_signal",
        "a wait that timed out takes no signal",
        _RUNS,
        "        return int(number) - sum(wait is not None and wait.problem == NO_SIGNAL for wait in before)\n",
        "        return int(number)\n",
        "tests/blackbox/test_durable_steps.py::TestSignals::test_a_signal_after_a_timeout_is_received",
    ),
    # -- worker deaths, and processes that stand still
    Mutant(
        "worker_deaths_unbounded",
        "a job whose worker has died five times is set aside",
        "store/outcomes.py",
        "    if deaths >= MAX_WORKER_DEATHS:\n",
        "    if False:\n",
        "tests/steps/test_rescue.py::test_a_job_that_keeps_killing_its_worker_is_set_aside",
    ),
    Mutant(
        "isolated_share_a_worker",
        "two jobs with two worker deaths never share a worker",
        "domain/planning/pack.py",
        "        return [room for room in rooms if not room.isolated] if self.lane.isolated else rooms\n",
        "        return rooms\n",
        "tests/unit/test_packing.py::TestIsolated"
        "::test_each_gets_a_worker_without_another_and_ordinary_jobs_use_the_other_slots",
    ),
    Mutant(
        "unclaimed_for_ever",
        "jobs that were sent to a child and not claimed are taken back",
        "processes/worker/dispatcher.py",
        "            if child.ignores_jobs(now) or (child.has_some_waiting and child.is_stuck(now)):\n",
        "            if child.has_some_waiting and child.is_stuck(now):\n",
        "tests/processes/test_standing_still.py::test_an_idle_child_keeps_no_jobs_next_to_a_free_one",
    ),
    Mutant(
        "foreign_locks_awaited",
        "a transaction gives up early on a document that another one holds",
        "store/sessions.py",
        "            if time.monotonic() < until or not is_conflict(error):\n",
        "            if True:\n",
        "tests/steps/test_foreign_locks.py::test_the_other_cancelled_jobs_are_archived",
    ),
    Mutant(
        "fetched_before_the_pause",
        "a step that is being fetched while pauses are asked for goes back",
        _HELD,
        "            self._doubtful = {id for id in assigned if id not in coming}\n",
        "            self._doubtful = set()\n",
        "tests/unit/test_held_jobs.py::test_a_step_that_is_fetched_while_pauses_are_asked_for_goes_back",
    ),
    Mutant(
        "leader_at_work_replaced",
        "a follower leaves the lease to a leader whose transaction is at work",
        _LEAD,
        "            if not (isinstance(seen, Lease) and self._is_at_work(seen)):\n",
        "            if True:\n",
        "tests/processes/test_dead_in_a_transaction.py::test_a_leader_in_a_long_transaction_keeps_the_lead",
    ),
    Mutant(
        "slow_worker_spared_for_long",
        "the session of a worker that was slow and then dies is ended again after a second",
        _LEAD,
        "max(_SPARED_SECONDS, 2 * spared_for)",
        "10.0",
        "tests/steps/test_lead.py::test_a_worker_that_was_slow_and_then_dies_in_its_settlement_blocks_nobody_for_long",
    ),
)
