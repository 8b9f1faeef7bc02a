package etcdqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	"starfish/internal/store"
)

// verdict is what a report found about one of its tasks.
type verdict int

const (
	// changed: the lane is to be written.
	changed verdict = iota
	// already: it is as the caller wants it.
	already
	// stale: it is not the caller's.
	stale
)

// verb is one kind of report. do changes the lane of task i; unsure tells that
// the same report may have been written before.
type verb struct {
	name   string
	guards []store.Cmp
	do     func(i int, l Lane, unsure bool) (Lane, []store.Op, verdict)
	// keeps: the tasks stay the caller's.
	keeps bool
}

// Touch says that work on the tasks goes on. What counts is progress of the
// work, not the life of the process: entries that are not touched, and of which
// nothing is completed, for the stall timeout go to somebody else. A caller
// that is held up by others gives the reason and so is left alone; it stands in
// the record for people to read.
func (q *Queue) Touch(ctx context.Context, tasks []Task, reason string) error {
	return q.report(ctx, tasks, verb{name: "touch", keeps: true, do: func(i int, l Lane, _ bool) (Lane, []store.Op, verdict) {
		l, ok := l.Touch(tasks[i].Position, q.holder(tasks[i]), reason)
		return l, nil, staleUnless(ok)
	}})
}

// Complete marks chunks as trained if all guards hold, which the same
// transaction compares: any number of chunks, up to 32 lanes a transaction.
//
// ErrGuard: nothing (of the transaction that was refused) was written and the
// chunks are still the caller's. ErrStale: those named are not, the others are
// complete; neither is a failure of a chunk. Repeated after an error that may
// have hidden its success, Complete succeeds.
func (q *Queue) Complete(ctx context.Context, done []Done, guards ...store.Cmp) error {
	tasks := make([]Task, len(done))
	for i, d := range done {
		tasks[i] = d.Task
	}
	return q.report(ctx, tasks, verb{name: "complete", guards: guards, do: func(i int, l Lane, unsure bool) (Lane, []store.Op, verdict) {
		after, ok := l.Done(tasks[i].Position, q.holder(tasks[i]), done[i].Sums)
		// An absent lane is one of a pass that is over: complete as well.
		if !ok && unsure && (l.V == 0 || l.Complete.Contains(tasks[i].Position)) {
			return l, nil, already
		}
		return after, nil, staleUnless(ok)
	}})
}

// Fail reports that a chunk's data are bad. It is given out again, or
// quarantined after MaxFailures such reports of whomever: then it is Failed in
// this pass, and `failed/<chunk>` with the reason and the detail (nil or JSON)
// keeps it out of later ones.
func (q *Queue) Fail(ctx context.Context, t Task, reason string, detail json.RawMessage) error {
	quarantine, failures := false, 0
	err := q.report(ctx, []Task{t}, verb{name: "fail", do: func(_ int, l Lane, unsure bool) (Lane, []store.Op, verdict) {
		var after Lane
		var ok bool
		// An earlier attempt may have come to another end.
		if after, quarantine, ok = l.Fail(t.Position, q.holder(t), q.c.MaxFailures); !ok && unsure {
			return l, nil, already
		}
		if !quarantine {
			return after, nil, staleUnless(ok)
		}
		failures = after.Tries[t.Position]
		record := FailedChunk{
			V: failedVersion, Chunk: t.Chunk, Pass: t.Pass, Reason: reason, Failures: failures,
			Owner: q.c.Name, Incarnation: q.c.Incarnation, Detail: detail,
		}
		return after, []store.Op{store.Put(failedKey(t.Chunk), mustJSON(record), 0)}, changed
	}})
	if err == nil && quarantine {
		q.mu.Lock()
		if !q.view.failed.has(t.Chunk) {
			q.view.failed[t.Chunk] = unread
		}
		q.mu.Unlock()
		q.c.Log.WithFields(logrus.Fields{"chunk": t.Chunk, "pass": t.Pass, "failures": failures, "error": reason}).
			Error("the chunk is quarantined")
	}
	return err
}

// Release gives chunks back untrained, for an orderly stop. No failure is
// counted; whoever takes them next goes on where the ledgers say.
func (q *Queue) Release(ctx context.Context, tasks []Task) error {
	return q.report(ctx, tasks, verb{name: "release", do: func(i int, l Lane, unsure bool) (Lane, []store.Op, verdict) {
		after, ok := l.Release(tasks[i].Position, q.holder(tasks[i]))
		if !ok && unsure {
			return l, nil, already
		}
		return after, nil, staleUnless(ok)
	}})
}

func (q *Queue) holder(t Task) Holder { return Holder{q.c.Incarnation, t.Token} }

func staleUnless(ok bool) verdict {
	if ok {
		return changed
	}
	return stale
}

// report changes the lanes of tasks, a group of them at a time. A group whose
// transaction fails ends it; tasks that turned out stale are named in the end.
func (q *Queue) report(ctx context.Context, tasks []Task, v verb) error {
	if len(tasks) == 0 {
		return nil
	}
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.unlock()
	var lost []Task
	var failure error
	for _, g := range groups(tasks) {
		stale, err := q.reportGroup(ctx, tasks, g, v)
		if err != nil {
			failure = fmt.Errorf("%s %s: %w", v.name, describe(tasks[g.tasks[0]]), err)
			break
		}
		lost = append(lost, stale...)
	}
	if len(lost) > 0 {
		failure = errors.Join(failure, &StaleError{Tasks: lost})
	}
	return failure
}

func (q *Queue) reportGroup(ctx context.Context, tasks []Task, g group, v verb) (lost []Task, err error) {
	before := q.unsure(tasks, g)
	step := func(lanes map[laneID]Lane, unsure bool) draft {
		d := draft{lanes: make(map[laneID]Lane)}
		lost = nil
		for _, i := range g.tasks {
			id := tasks[i].id()
			l, puts, found := v.do(i, lanes[id], unsure || before[i])
			switch found {
			case changed:
				lanes[id], d.lanes[id] = l, l
				d.puts = append(d.puts, puts...)
			case already:
			case stale:
				d.surprised = true
				lost = append(lost, tasks[i])
			}
		}
		return d
	}
	unsure, err := q.run(ctx, edit{ids: g.ids, guards: v.guards, step: step})
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err == nil && v.keeps:
		for _, t := range lost {
			q.takes.settle(t)
		}
	case err == nil:
		for _, i := range g.tasks {
			q.takes.settle(tasks[i])
		}
	case unsure && !v.keeps:
		for _, i := range g.tasks {
			q.takes.unsure[tasks[i]] = true
		}
	}
	if err != nil {
		lost = nil
	}
	return lost, err
}

// unsure tells for which tasks of the group an earlier report went without an
// answer.
func (q *Queue) unsure(tasks []Task, g group) map[int]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := make(map[int]bool)
	for _, i := range g.tasks {
		if q.takes.unsure[tasks[i]] {
			before[i] = true
		}
	}
	return before
}

// group is the tasks (their indices) of one transaction, and their lanes.
type group struct {
	tasks []int
	ids   []laneID
}

// groups cuts tasks so that no group has too many lanes for a transaction.
func groups(tasks []Task) []group {
	var gs []group
	for i, t := range tasks {
		last := len(gs) - 1
		if last < 0 || len(gs[last].ids) == maxTxnLanes && !slices.Contains(gs[last].ids, t.id()) {
			gs = append(gs, group{})
			last++
		}
		gs[last].tasks = append(gs[last].tasks, i)
		if !slices.Contains(gs[last].ids, t.id()) {
			gs[last].ids = append(gs[last].ids, t.id())
		}
	}
	return gs
}

func describe(t Task) string {
	return fmt.Sprintf("chunk %d (pass %d lane %d position %d token %d)", t.Chunk, t.Pass, t.Lane, t.Position, t.Token)
}
