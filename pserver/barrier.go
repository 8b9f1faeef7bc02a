package pserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"starfish/internal/wire"
	"starfish/pserver/optimizer"
)

// Steps says how the trainers of a shard keep step with each other.
// docs/sync.md has the rules of the barrier, and the reason of each.
type Steps struct {
	// Together: the batches of a step are applied together, when it closes.
	// Otherwise each is applied as it arrives, and a trainer waits only while it
	// is Ahead steps ahead of the slowest.
	Together bool
	Ahead    int64
	// Closed is told of each step that closes how long its first batch has
	// waited. Optional; called under the shard's lock.
	Closed func(waited time.Duration)
}

// Start is what a shard knows of the open step when its owner begins to serve.
type Start uint8

const (
	// StartZero: the job's first owner of the shard, at step 0.
	StartZero Start = iota
	// StartRecovery: the step of the first request is adopted, and the first
	// barrier ends at a time-out too.
	StartRecovery
	// StartUnknown: the step is not known and none is adopted: nothing closes.
	StartUnknown
)

// barrier is what a shard knows of the trainers' steps. It lies under the
// shard's lock. All that is known of a trainer's arrival ends with the stream on
// which it has arrived.
type barrier struct {
	Steps
	// step is the open step, if it is known.
	step  int64
	known bool
	// adopt: the step of the next batch becomes the open one; recovering, that
	// it closes at the deadline though somebody has not arrived.
	adopt, recovering bool
	patience          time.Duration
	deadline          time.Time
	// members are the live trainers by incarnation, with their names, as they
	// were at a revision of the store; nil before they are known.
	members  map[[16]byte]string
	revision int64
	arrivals map[[16]byte]*arrival
	spare    *arrival
	// moved is closed, and renewed, when something has been closed.
	moved  chan struct{}
	memory *Memory
	since  time.Time // the first arrival at the open step that waits
	bytes  int64     // of the batches that wait
	sum    wire.PushData
}

// arrival is the newest that a trainer has said.
type arrival struct {
	trainer [16]byte
	source  uint64
	// step and pass are those of its batch; an idle trainer has nothing to do in
	// any pass up to pass.
	step int64
	pass int
	idle bool
	// pending: push waits for the end of its step, and result is not known yet.
	pending bool
	push    wire.PushData
	bytes   int64
	// reserved is what its new rows may take.
	reserved int64
	fault    optimizer.Fault
	result   Outcome // Told once a stream was given it
}

func newBarrier(s Steps, m *Memory) *barrier {
	return &barrier{Steps: s, memory: m, known: true, arrivals: map[[16]byte]*arrival{}, moved: make(chan struct{})}
}

// StartSteps says what is known of the open step; to be called before an owner
// begins to serve, unless it goes on with what it has in memory. In recovery the
// first barrier ends at the latest patience after its first batch. Without
// steps it does nothing.
func (s *Shard) StartSteps(how Start, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.barrier
	if b == nil || how == StartZero {
		return
	}
	b.known, b.adopt, b.recovering = false, how == StartRecovery, how == StartRecovery
	b.patience, b.deadline = patience, time.Time{}
}

// SetTrainers says which trainers are live, at a revision of the store: names by
// incarnation. Older news than the last is ignored.
func (s *Shard) SetTrainers(revision int64, live map[[16]byte]string, now time.Time, ok func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.barrier
	if b == nil || revision < b.revision {
		return
	}
	b.members, b.revision = live, revision
	if s.serves(ok) == nil {
		s.close(now, false)
	}
}

// Idle notes that a trainer has nothing to do in any pass up to at.Step.
func (s *Shard) Idle(source uint64, at wire.Barrier, now time.Time, ok func() bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.steps(ok); err != nil {
		return err
	}
	a := s.barrier.note(source, at)
	a.idle, a.pass = true, int(at.Step)
	s.close(now, false)
	return s.broken
}

// steps is serves for what only jobs with steps may ask.
func (s *Shard) steps(ok func() bool) error {
	if s.barrier == nil {
		return fmt.Errorf("%w: the trainers of this job do not keep step", ErrInvalid)
	}
	return s.serves(ok)
}

// Arrive handles a push, or one part of a push, of a trainer at a step. With
// Together a batch that would be applied waits (Outcome.Waiting) until Await
// tells what became of it; a step that is closed already is refused with the
// open one (Outcome.Closed).
func (s *Shard) Arrive(source uint64, at wire.Barrier, p *wire.PushData, now time.Time, ok func() bool) (Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.steps(ok); err != nil {
		return Outcome{}, err
	}
	if !s.barrier.Together {
		return s.pass(source, at, p, now)
	}
	if p.Part == 0 {
		s.drop(source)
	}
	if p.Part == 0 && !p.More {
		return s.arrive(source, at, p, nil, now)
	}
	st, err := s.takePart(source, p)
	switch {
	case err != nil:
		s.drop(source)
		return Outcome{}, err
	case p.More:
		return Outcome{Staged: true}, nil
	case st.unwanted:
		defer s.drop(source)
		out, err := s.pushUnwanted(&st.push)
		if err == nil && !out.Code().Refused() {
			s.barrier.arrived(source, at, &st.push, out)
			s.close(now, false)
		}
		return out, err
	}
	delete(s.staged, source)
	s.stage.add(source, -st.bytes)
	return s.arrive(source, at, &st.push, st, now)
}

// pass handles a push that is applied at once, whatever the step.
func (s *Shard) pass(source uint64, at wire.Barrier, p *wire.PushData, now time.Time) (Outcome, error) {
	out, err := s.pushAny(source, p)
	if err != nil || out.Staged || out.Code().Refused() {
		return out, err
	}
	s.barrier.adoptStep(at.Step, now)
	at.Step = max(at.Step, s.barrier.step)
	s.barrier.arrived(source, at, p, out)
	s.close(now, false)
	return out, s.broken
}

// arrive handles a push that is complete. kept is the memory that it lies in if
// that may be kept.
func (s *Shard) arrive(source uint64, at wire.Barrier, p *wire.PushData, kept *stagedPush, now time.Time) (Outcome, error) {
	d, err := s.content.ledger.Decide(&p.Meta)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	b := s.barrier
	out := s.outcome(&p.Meta, d.Verdict)
	if out.Code() == wire.Duplicate || out.Code().Refused() {
		s.content.ledger.Commit(&p.Meta, d)
		if !out.Code().Refused() {
			b.adoptStep(at.Step, now)
			b.arrived(source, at, p, out)
			s.close(now, false)
		}
		return out, s.broken
	}
	b.adoptStep(at.Step, now)
	if b.known && at.Step < b.step {
		return Outcome{Closed: true, Next: b.step}, nil
	}
	fault, reserved := optimizer.OK, int64(0)
	if d.Applies() {
		if fault, err = s.check(p); err != nil {
			return Outcome{}, err
		}
	}
	if d.Applies() && fault == optimizer.OK {
		if reserved, err = s.grow(p); err != nil {
			return Outcome{}, err
		}
	}
	a := b.note(source, at)
	a.pass, a.fault, a.pending, a.reserved = p.Pass, fault, true, reserved
	b.keep(a, p, kept, d.Applies() && fault == optimizer.OK)
	if b.since.IsZero() {
		b.since = now
	}
	s.close(now, false)
	if s.broken != nil {
		return Outcome{}, s.broken
	}
	return Outcome{Waiting: true, Next: b.step}, nil
}

// Await tells what became of the batch that arrived on the stream under a step.
// While that is not known, or the trainer has to let others catch up, the
// outcome is Waiting, with the reason; moved is closed when it is worth asking
// again, and due, if it is not zero, is when it is at the latest. Otherwise Next is
// the step that the trainer has done, unless the outcome is a refusal.
func (s *Shard) Await(source uint64, at wire.Barrier, now time.Time, ok func() bool) (out Outcome, moved <-chan struct{}, due time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.steps(ok); err != nil {
		return Outcome{}, nil, due, err
	}
	b := s.barrier
	if b.recovering && !b.deadline.IsZero() && !now.Before(b.deadline) {
		s.close(now, true)
		if s.broken != nil {
			return Outcome{}, nil, due, s.broken
		}
	}
	a := b.arrivals[at.Trainer]
	switch {
	case a == nil || a.source != source || a.idle || b.Together && a.step != at.Step:
		open := at.Step
		if b.known {
			open = max(open, b.step)
		}
		return Outcome{Closed: true, Next: open}, nil, due, nil
	case a.pending, !b.Together && b.known && b.members != nil && b.step <= a.step-b.Ahead:
		if b.recovering {
			due = b.deadline
		}
		return Outcome{Waiting: true, Next: b.step, Reason: b.reason(a)}, b.moved, due, nil
	}
	out, a.result.Lost, a.result.Told = a.result, 0, true // a gap is told once
	if !out.Code().Refused() {
		out.Next = a.step
		if !b.Together {
			out.Next = max(a.step, b.step) // a joiner is as far as the slowest
		}
	}
	return out, nil, due, nil
}

// adoptStep makes the first step that is heard of the open one.
func (b *barrier) adoptStep(step int64, now time.Time) {
	if b.known || !b.adopt {
		return
	}
	b.step, b.known, b.adopt = step, true, false
	b.deadline = now.Add(b.patience)
}

// note returns the trainer's arrival at a step, without a batch.
func (b *barrier) note(source uint64, at wire.Barrier) *arrival {
	for id, a := range b.arrivals {
		if id == at.Trainer || a.source == source { // a stream is one trainer's
			b.forget(a)
		}
	}
	a := b.spare
	if b.spare = nil; a == nil {
		a = &arrival{}
	}
	a.trainer, a.source, a.step = at.Trainer, source, at.Step
	b.arrivals[at.Trainer] = a
	return a
}

// arrived notes a batch of which the outcome is known.
func (b *barrier) arrived(source uint64, at wire.Barrier, p *wire.PushData, out Outcome) {
	a := b.note(source, at)
	a.pass, a.result = p.Pass, out
	a.result.Told = true
}

// keep puts a batch aside until its step closes.
func (b *barrier) keep(a *arrival, p *wire.PushData, kept *stagedPush, values bool) {
	dense, sparse := a.push.Dense[:0], a.push.Sparse[:0]
	a.push.Meta, a.push.Seen = p.Meta, p.Seen
	a.push.Dense, a.push.Sparse = dense, sparse
	switch {
	case !values:
	case kept != nil:
		a.push.Dense, a.push.Sparse = p.Dense, p.Sparse
	default:
		a.push.Dense, a.push.Sparse = appendBlocks(dense, p.Dense), appendSections(sparse, p.Sparse)
	}
	for i := range a.push.Dense {
		a.bytes += int64(len(a.push.Dense[i].Values)) * 4
	}
	for i := range a.push.Sparse {
		a.bytes += int64(len(a.push.Sparse[i].Keys))*8 + int64(len(a.push.Sparse[i].Values))*4
	}
	b.count(a.bytes)
}

// count counts bytes of batches that wait, for the process too.
func (b *barrier) count(bytes int64) {
	b.bytes += bytes
	b.memory.used.Add(bytes)
}

// settle ends the wait of a batch.
func (b *barrier) settle(a *arrival, out Outcome) {
	a.pending, a.result = false, out
	b.count(-a.bytes)
	a.bytes, a.reserved = 0, 0
}

// forget drops what is known of a trainer, with the batch that waits.
func (b *barrier) forget(a *arrival) {
	delete(b.arrivals, a.trainer)
	b.count(-a.bytes)
	b.memory.used.Add(-a.reserved)
	*a = arrival{push: wire.PushData{Dense: a.push.Dense, Sparse: a.push.Sparse}}
	b.spare = a
}

// drop drops what has arrived on a stream.
func (b *barrier) drop(source uint64) {
	for _, a := range b.arrivals {
		if a.source == source {
			b.forget(a)
		}
	}
}

// next is the smallest step that a batch waits for, with the newest pass of its
// batches. Without Together it is that of the slowest trainer.
func (b *barrier) next() (step int64, pass int, any bool) {
	for _, a := range b.arrivals {
		switch {
		case b.Together && !a.pending, a.idle, a.step < b.step:
		case !any || a.step < step:
			step, pass, any = a.step, a.pass, true
		case a.step == step || !b.Together:
			pass = max(pass, a.pass)
		}
	}
	return step, pass, any
}

// missing are the names of the live trainers that have not arrived at a step or
// a later one. An idle trainer has arrived at batches of the passes in which it
// has nothing to do: at the first one of the next pass it is waited for again.
func (b *barrier) missing(step int64, pass int) (names []string) {
	for id, name := range b.members {
		a := b.arrivals[id]
		if a == nil || a.idle && a.pass < pass || !a.idle && a.step < step {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// reason says what an arrival waits for.
func (b *barrier) reason(a *arrival) string {
	step, pass, _ := b.next()
	switch {
	case !b.known:
		return "the open step is not known, and --recovery never forbids to adopt one"
	case b.members == nil:
		return "the trainers are not known yet"
	case !b.Together:
		step = min(step, a.step-b.Ahead)
	}
	return fmt.Sprintf("step %d waits for %s", step, strings.Join(b.missing(step, pass), " "))
}

// status is how it stands.
func (b *barrier) status() *BarrierStatus {
	if b == nil {
		return nil
	}
	st := &BarrierStatus{Step: b.step, Known: b.known, Recovering: b.recovering, Bytes: b.bytes}
	for _, a := range b.arrivals {
		if a.pending || !b.Together && !a.idle && a.step-b.Ahead >= b.step {
			st.Batches++
		}
		if b.known && !a.idle {
			st.Lead = max(st.Lead, a.step-b.step)
		}
	}
	if step, pass, any := b.next(); any && st.Batches > 0 {
		if !b.Together {
			step = b.step
		}
		st.Missing = b.missing(step, pass)
	}
	return st
}

// waiting says whom batches wait for, "" if none waits.
func (st *BarrierStatus) waiting() string {
	if st == nil || st.Batches == 0 {
		return ""
	}
	if !st.Known {
		return "the open step is not known"
	}
	return fmt.Sprintf("step %d waits for %s", st.Step, strings.Join(st.Missing, " "))
}

// close closes steps as long as nobody is missing; the first one even then if
// it is forced.
func (s *Shard) close(now time.Time, force bool) {
	b := s.barrier
	for s.broken == nil && b.known && (b.members != nil || force) {
		step, pass, any := b.next()
		if !any || !force && len(b.missing(step, pass)) > 0 {
			return
		}
		b.step = step // what lies between is no batch's: all have gone past it
		if b.Together {
			s.broken = s.closeStep()
		}
		b.step++
		if b.Closed != nil && !b.since.IsZero() {
			b.Closed(now.Sub(b.since))
		}
		b.since = time.Time{}
		if _, _, more := b.next(); more {
			b.since = now
		}
		b.recovering, force = false, false
		close(b.moved)
		b.moved = make(chan struct{})
	}
}

// closeStep applies the batches that wait for the open step, in the order of
// their identities, so that the sum does not depend on who was first. The ledger
// is asked again for each, one after the other: of two that are the same batch
// one is applied.
func (s *Shard) closeStep() error {
	var due, applied []*arrival
	for _, a := range s.barrier.arrivals {
		if a.pending && a.step == s.barrier.step {
			due = append(due, a)
		}
	}
	slices.SortFunc(due, func(a, b *arrival) int {
		p, q := &a.push.Meta, &b.push.Meta
		return cmp.Or(cmp.Compare(p.Pass, q.Pass), cmp.Compare(p.Rank, q.Rank), cmp.Compare(p.N, q.N),
			cmp.Compare(p.Token, q.Token), slices.Compare(a.trainer[:], b.trainer[:]))
	})
	now, reserved := moment{batches: s.content.ledger.Counted()}, int64(0)
	defer func() { s.account(reserved) }()
	for _, a := range due {
		reserved += a.reserved
		d, err := s.content.ledger.Decide(&a.push.Meta)
		if err != nil { // it was valid when it arrived
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		if d.Applies() && a.fault != optimizer.OK {
			d = d.Skip()
		}
		if d.Applies() {
			applied = append(applied, a)
		}
		s.content.ledger.Commit(&a.push.Meta, d)
		out := s.outcome(&a.push.Meta, d.Verdict)
		out.Lost = d.Lost
		s.barrier.settle(a, out)
	}
	if len(applied) == 0 {
		return nil
	}
	now.together = len(applied)
	return s.applyTogether(applied, now)
}

// applyTogether makes one update of the sum of batches.
func (s *Shard) applyTogether(list []*arrival, now moment) error {
	for _, a := range list {
		s.age(&a.push)
	}
	s.updates += int64(len(list))
	sum := &s.barrier.sum
	sum.Meta, sum.Dense, sum.Sparse = list[0].push.Meta, sum.Dense[:0], sum.Sparse[:0]
	for _, a := range list {
		sum.Dense = s.addBlocks(sum.Dense, a.push.Dense)
		sum.Sparse = appendSections(sum.Sparse, a.push.Sparse)
	}
	s.pushes++
	rows := s.scratch(sum)
	for i := range sum.Sparse {
		v := &sum.Sparse[i]
		if err := s.content.tables[v.Param].pushed(v.Keys, rows[:len(v.Keys)]); err != nil {
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		rows = rows[len(v.Keys):]
	}
	err := s.apply(sum, now)
	if e, ok := err.(*NonFiniteError); ok { //nolint:errorlint // apply wraps nothing
		e.blame(s.params, list)
	}
	return err
}

// addBlocks adds up the blocks of batches, each in the order of the calls. The
// blocks of a rule that counts exactly stay apart, and are applied in turn.
func (s *Shard) addBlocks(to, blocks []wire.DenseBlock) []wire.DenseBlock {
	for i := range blocks {
		v := &blocks[i]
		at := -1
		if !s.params[v.Param].opt.Additive() {
			at = slices.IndexFunc(to, func(b wire.DenseBlock) bool { return b.Param == v.Param && b.Block == v.Block })
		}
		if at < 0 {
			to = appendBlocks(to, blocks[i:i+1])
			continue
		}
		for k, x := range v.Values {
			to[at].Values[k] += x
		}
	}
	return to
}

// blame names the batch with the largest gradient at the place that became
// non-finite.
func (e *NonFiniteError) blame(ps params, list []*arrival) {
	most := float32(-1)
	for _, a := range list {
		if g := max(e.gradient(ps, &a.push), 0); g > most {
			most = g
			e.Pass, e.Rank, e.N = a.push.Pass, a.push.Rank, a.push.N
		}
	}
}
