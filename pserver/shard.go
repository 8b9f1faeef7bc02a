package pserver

import (
	"errors"
	"fmt"
	"sync"

	"starfish/internal/ranges"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/optimizer"
	"starfish/pserver/staleness"
)

// ShardOptions is how a shard behaves, beside the job's parameters.
type ShardOptions struct {
	// Policy for batches lost by a restore.
	Policy ledger.Policy
	// Stage bounds the bytes of incomplete pushes, for all the shards of a
	// process together. Nil gives the shard one of its own with the default
	// limit.
	Stage *Stage
	// Memory is the account of all the shards of a process. Nil gives the shard
	// one of its own without limit.
	Memory *Memory
	// Blank makes a shard for a Loader: it has no values, and refuses everything
	// by ErrBlank until a load is finished, or until Fill.
	Blank bool
	// Steps makes the trainers keep step; nil does not.
	Steps *Steps
}

// Shard is one of the S parts of every parameter, with optimizer state and
// ledger, under one lock. All methods may be called concurrently.
//
// A push is handled in this order, all of it under the lock: is this process
// still the owner; what does the ledger say; does the push fit the parameters
// (all of it, before anything changes); is the gradient finite; apply; commit
// to the ledger. So weights and ledger always describe the same batches.
type Shard struct {
	number int
	lanes  int
	job    job.Parameters
	params params
	policy ledger.Policy
	stage  *Stage
	memory *Memory

	mu         sync.Mutex
	content    *content
	broken     error
	generation int64
	staged     map[uint64]*stagedPush
	spare      *stagedPush
	barrier    *barrier // nil where trainers do not keep step
	// updates counts the batches that have been applied here, ages how many of
	// others' each had not seen.
	updates int64
	ages    staleness.Counts
	// pushes numbers the pushes that are checked, to mark what each has named.
	pushes uint64
	// accounted is what the shard takes by the memory's account; after its release
	// it takes nothing.
	accounted int64
	released  bool
	// rows is scratch: the row numbers of the keys of one request.
	rows []uint32
}

// content is what a checkpoint holds.
type content struct {
	dense  []*dense // by parameter number, nil for a sparse one
	tables []*table // by parameter number, nil for a dense one
	ledger *ledger.Ledger
	// cut is the one that is open, if any.
	cut *Cut
}

// NewShard returns the shard in its initial state: dense blocks have their
// initial values, tables no rows, the ledger no batches.
func NewShard(p job.Parameters, shard, lanes int, o ShardOptions) (*Shard, error) {
	if lanes <= 0 {
		return nil, fmt.Errorf("shard %d of a queue of %d lanes", shard, lanes)
	}
	list, err := newParameters(p, shard)
	if err != nil {
		return nil, fmt.Errorf("make shard: %w", err)
	}
	limit := int64(0)
	if o.Memory != nil {
		limit = o.Memory.limit
	}
	chooseFlat(list, limit)
	number(list)
	s := &Shard{
		number: shard, lanes: lanes, job: p, params: list,
		policy: o.Policy, stage: o.Stage, memory: o.Memory, staged: map[uint64]*stagedPush{},
	}
	if s.stage == nil {
		s.stage = NewStage(0)
	}
	if s.memory == nil {
		s.memory = NewMemory(0, s.stage)
	}
	if o.Steps != nil {
		s.barrier = newBarrier(*o.Steps, s.memory)
	}
	s.content = s.newContent()
	if o.Blank {
		s.broken = ErrBlank
	} else {
		s.content.fill()
	}
	s.account(0)
	return s, nil
}

// Fill gives a blank shard its initial values.
func (s *Shard) Fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.broken, ErrBlank) {
		s.content.fill()
		s.broken = nil
		s.account(0)
	}
}

func (s *Shard) newContent() *content {
	c := &content{
		dense:  make([]*dense, len(s.params)),
		tables: make([]*table, len(s.params)),
		ledger: ledger.New(s.lanes, s.policy),
	}
	for i, p := range s.params {
		if p.Sparse {
			c.tables[i] = newTable(p)
		} else {
			c.dense[i] = newDense(p)
		}
	}
	return c
}

// fill gives the dense parameters their initial values; rows get theirs when they
// are made.
func (c *content) fill() {
	for _, t := range c.tables {
		if t != nil {
			t.index.allocate()
		}
	}
	for _, d := range c.dense {
		if d != nil {
			d.fill()
		}
	}
}

// Push handles one push, or one part of a push. The source tells apart the
// streams on which parts arrive. ok is asked under the shard's lock whether
// this process still owns the shard; nil means yes.
//
// On an error nothing has changed, except that a *NonFiniteError breaks the
// shard for good. The values of the push are not kept after the call.
func (s *Shard) Push(source uint64, p *wire.PushData, ok func() bool) (Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ok); err != nil {
		return Outcome{}, err
	}
	return s.pushAny(source, p)
}

// pushAny handles a push that is complete, or a part of one.
func (s *Shard) pushAny(source uint64, p *wire.PushData) (Outcome, error) {
	if !p.More && p.Part == 0 && len(s.staged) == 0 {
		return s.push(p)
	}
	return s.pushPart(source, p)
}

// serves tells why the shard answers nothing, if so.
func (s *Shard) serves(ok func() bool) error {
	if s.broken != nil {
		return s.broken
	}
	if ok != nil && !ok() {
		return ErrNotOwner
	}
	return nil
}

// push handles a push that is complete.
func (s *Shard) push(p *wire.PushData) (Outcome, error) {
	d, err := s.content.ledger.Decide(&p.Meta)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if d.Applies() {
		fault, err := s.check(p)
		if err != nil {
			return Outcome{}, err
		}
		if fault != optimizer.OK {
			d = d.Skip()
		} else if err := s.change(p, moment{batches: s.content.ledger.Counted() + d.Lost}); err != nil {
			return Outcome{}, err
		}
	}
	s.content.ledger.Commit(&p.Meta, d)
	out := s.outcome(&p.Meta, d.Verdict)
	out.Lost = d.Lost
	return out, nil
}

// change applies what check has validated, if there is memory for it.
func (s *Shard) change(p *wire.PushData, now moment) error {
	reserved, err := s.grow(p)
	if err != nil {
		return err
	}
	s.broken = s.apply(p, now)
	s.account(reserved)
	if s.broken == nil {
		s.age(p)
		s.updates++
	}
	return s.broken
}

func (s *Shard) outcome(m *wire.Meta, v ledger.Verdict) Outcome {
	finished, next := s.content.ledger.Progress(m.Pass, m.Rank)
	return Outcome{Verdict: v, Finished: finished, Next: next}
}

// check validates the whole push, finds its rows and looks for what is not
// finite. It changes nothing that anybody can see.
func (s *Shard) check(p *wire.PushData) (optimizer.Fault, error) {
	s.pushes++
	worst := optimizer.OK
	for i := range p.Dense {
		v := &p.Dense[i]
		if _, err := s.params.get(v.Param, false); err != nil {
			return 0, err
		}
		fault, err := s.content.dense[v.Param].check(v, s.pushes)
		if err != nil {
			return 0, err
		}
		worst = max(worst, fault)
	}
	if err := s.checkTables(p); err != nil {
		return 0, err
	}
	rows := s.scratch(p)
	for i := range p.Sparse {
		v := &p.Sparse[i]
		fault, err := s.content.tables[v.Param].check(v, rows[:len(v.Keys)])
		if err != nil {
			return 0, err
		}
		worst = max(worst, fault)
		rows = rows[len(v.Keys):]
	}
	if worst == optimizer.Invalid {
		return 0, fmt.Errorf("%w: a gradient has values that its optimizer has no meaning for", ErrInvalid)
	}
	return worst, nil
}

// checkTables validates which tables a push names, and makes one section of
// several of one table.
func (s *Shard) checkTables(p *wire.PushData) error {
	twice := false
	for i := range p.Sparse {
		v := &p.Sparse[i]
		if _, err := s.params.get(v.Param, true); err != nil {
			return err
		}
		t := s.content.tables[v.Param]
		twice = twice || t.mark == s.pushes
		t.mark = s.pushes
	}
	if twice {
		p.Sparse = appendSections(nil, p.Sparse)
	}
	return nil
}

// scratch is room for the row numbers of all the push's keys.
func (s *Shard) scratch(p *wire.PushData) []uint32 {
	n := 0
	for i := range p.Sparse {
		n += len(p.Sparse[i].Keys)
	}
	return s.room(n)
}

func (s *Shard) room(n int) []uint32 {
	if n > len(s.rows) {
		s.rows = make([]uint32, n+n/2)
	}
	return s.rows
}

// moment is when and from how much an update is made.
type moment struct {
	// batches is the number of those that are counted before this one: the time
	// of the learning rate's schedule.
	batches int64
	// together is how many batches the gradient is the sum of; 0 means one.
	together int
}

// age counts how many updates of others the values of a push had not seen.
func (s *Shard) age(p *wire.PushData) {
	if p.Seen >= 0 {
		s.ages.Add(s.updates - p.Seen)
	}
}

// apply updates what check has validated.
func (s *Shard) apply(p *wire.PushData, now moment) error {
	for i := range p.Dense {
		s.content.dense[p.Dense[i].Param].measure(&p.Dense[i], s.pushes, now)
	}
	for i := range p.Dense {
		v := &p.Dense[i]
		if bad := s.content.dense[v.Param].apply(v); bad >= 0 {
			return s.nonFinite(p, &NonFiniteError{Parameter: s.params[v.Param].Name, Element: bad})
		}
	}
	rows := s.rows
	for i := range p.Sparse {
		v := &p.Sparse[i]
		if key, bad := s.content.tables[v.Param].apply(v, rows[:len(v.Keys)], now); bad {
			return s.nonFinite(p, &NonFiniteError{Parameter: s.params[v.Param].Name, Sparse: true, Row: key})
		}
		rows = rows[len(v.Keys):]
	}
	return nil
}

func (s *Shard) nonFinite(p *wire.PushData, e *NonFiniteError) error {
	e.Pass, e.Rank, e.N = p.Pass, p.Rank, p.N
	return e
}

// Staleness is how old the values were of what has been applied here.
func (s *Shard) Staleness() *staleness.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ages
	return &c
}

// PullSize returns the number of values that the answer to a pull has, or an
// ErrInvalid. It takes no lock.
func (s *Shard) PullSize(dense []wire.BlockRef, sparse []wire.KeyRef) (int, error) {
	return s.params.pullSize(dense, sparse)
}

// Pull writes the values of the dense blocks, then those of the rows, in the
// order asked, into one place that it asks of the sink once, under the lock. A
// row that does not exist has its initial value, and is not created. ok is as
// for Push.
func (s *Shard) Pull(dense []wire.BlockRef, sparse []wire.KeyRef, sink wire.Sink, ok func() bool) error {
	_, err := s.PullAt(dense, sparse, sink, ok)
	return err
}

// PullAt is Pull; it also returns how many batches had been applied to what it
// has read.
func (s *Shard) PullAt(dense []wire.BlockRef, sparse []wire.KeyRef, sink wire.Sink, ok func() bool) (updates int64, err error) {
	size, err := s.params.pullSize(dense, sparse)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ok); err != nil {
		return 0, err
	}
	keys := 0
	for i := range sparse {
		keys += len(sparse[i].Keys)
	}
	rows := s.room(keys)
	for i := range sparse {
		n := len(sparse[i].Keys)
		if err := s.content.tables[sparse[i].Param].pulled(sparse[i].Keys, rows[:n]); err != nil {
			return 0, err
		}
		rows = rows[n:]
	}
	s.read(sink.Values(size), dense, sparse)
	return s.updates, nil
}

func (s *Shard) read(dst []float32, dense []wire.BlockRef, sparse []wire.KeyRef) {
	for _, r := range dense {
		dst = s.content.dense[r.Param].read(dst, r.Block)
	}
	rows := s.rows
	for i := range sparse {
		n := len(sparse[i].Keys)
		dst = s.content.tables[sparse[i].Param].read(dst, sparse[i].Keys, rows[:n])
		rows = rows[n:]
	}
}

// Progress tells how far the shard is with a chunk: whether it is finished, and
// which batch it wants next otherwise.
func (s *Shard) Progress(pass int, rank int64) (finished bool, next int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Progress(pass, rank)
}

// MarkRestored notes that the shard begins without what an earlier owner has
// applied: to be called for a generation that starts without a checkpoint where
// there was an owner before. Loader.Finish does it by itself.
func (s *Shard) MarkRestored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content.ledger.MarkRestored()
}

// SetGeneration notes the generation under which the shard is owned, for Stats.
func (s *Shard) SetGeneration(generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation = generation
}

// Missing, Covers, Reopened, Reckon, Forget and Collapse are those of the
// ledger, under the shard's lock.
func (s *Shard) Missing(pass, lane int, complete ranges.Set) ranges.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Missing(pass, lane, complete)
}

// Covers: see ledger.Ledger.
func (s *Shard) Covers(pass int, lanes []ledger.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Covers(pass, lanes)
}

// Reopened: see ledger.Ledger.
func (s *Shard) Reopened(pass, lane int, positions ranges.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content.ledger.Reopened(pass, lane, positions)
}

// Reckon: see ledger.Ledger.
func (s *Shard) Reckon(pass int, lanes []ledger.Lane) ledger.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Reckon(pass, lanes)
}

// Unreckoned: see ledger.Ledger.
func (s *Shard) Unreckoned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Unreckoned()
}

// Forget: see ledger.Ledger.
func (s *Shard) Forget(floor int, batches int64) (lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Forget(floor, batches)
}

// Collapse: see ledger.Ledger.
func (s *Shard) Collapse(pass int, chunks int64, lanes []ledger.Lane) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.ledger.Collapse(pass, chunks, lanes)
}

// Stats describes the shard.
func (s *Shard) Stats() ShardStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ShardStats{Shard: s.number, Generation: s.generation, Summary: s.content.ledger.Summary(), Barrier: s.barrier.status()}
	st.Total = st.Summary.Total()
	for i := range s.params {
		if t := s.content.tables[i]; t != nil {
			st.Rows += int64(t.rows.N)
			continue
		}
		for b := range s.content.dense[i].at {
			st.Elements += int64(s.content.dense[i].at[b].n)
		}
	}
	st.Bytes = s.bytes()
	return st
}

// Err is the *NonFiniteError that has broken the shard, ErrBlank while it is
// blank, nil otherwise.
func (s *Shard) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}
