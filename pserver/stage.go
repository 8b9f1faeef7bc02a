package pserver

import (
	"context"
	"fmt"
	"sync"

	"starfish/internal/wire"
	"starfish/pserver/ledger"
)

// DefaultStageBytes is the default limit of a Stage.
const DefaultStageBytes = 256 << 20

// Stage bounds the bytes that incomplete pushes hold, over all the shards of a
// process. It is the back-pressure of design section 5: a server calls Wait
// before it reads the next message of a stream. The bytes exceed the limit by
// at most one message a stream, and by what the oldest source still sends.
//
// Its lock is taken under a shard's lock, and Wait takes no shard's lock.
type Stage struct {
	limit int64

	mu      sync.Mutex
	held    int64
	clock   uint64
	sources map[uint64]holding
	// changed is closed and renewed when bytes are given back and somebody waits.
	changed chan struct{}
	waiting bool
}

// holding is what one source has staged, and since when.
type holding struct {
	bytes int64
	since uint64
}

// NewStage returns a stage of so many bytes; 0 means DefaultStageBytes.
func NewStage(limit int64) *Stage {
	if limit <= 0 {
		limit = DefaultStageBytes
	}
	return &Stage{limit: limit, sources: map[uint64]holding{}, changed: make(chan struct{})}
}

// Wait returns at once while the staged bytes are within the limit, and for
// the source that has held bytes the longest; it makes every other source wait.
// So one push can always be completed, and after it the others.
func (s *Stage) Wait(ctx context.Context, source uint64) error {
	for {
		s.mu.Lock()
		free, changed := s.held <= s.limit || s.oldest(source), s.changed
		s.waiting = s.waiting || !free
		s.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for room to stage a push: %w", context.Cause(ctx))
		}
	}
}

func (s *Stage) oldest(source uint64) bool {
	mine, holds := s.sources[source]
	if !holds {
		return false
	}
	for _, h := range s.sources {
		if h.since < mine.since {
			return false
		}
	}
	return true
}

// Held returns the staged bytes.
func (s *Stage) Held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// add accounts for staged bytes, or for bytes given back (negative).
func (s *Stage) add(source uint64, bytes int64) {
	if bytes == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, holds := s.sources[source]
	if !holds {
		s.clock++
		h.since = s.clock
	}
	h.bytes += bytes
	s.held += bytes
	s.sources[source] = h
	if h.bytes == 0 {
		delete(s.sources, source)
	}
	if bytes < 0 && s.waiting {
		close(s.changed)
		s.changed, s.waiting = make(chan struct{}), false
	}
}

// stagedPush is a push of which parts have come.
type stagedPush struct {
	push  wire.PushData
	parts int
	bytes int64
	// unwanted: the first part was no push that applies, so no values are kept.
	unwanted bool
}

// pushPart handles a part of a push, or a push that may replace one that was
// never completed.
func (s *Shard) pushPart(source uint64, p *wire.PushData) (Outcome, error) {
	if p.Part == 0 {
		s.drop(source)
		if !p.More {
			return s.push(p)
		}
	}
	st, err := s.takePart(source, p)
	if err != nil {
		s.drop(source)
		return Outcome{}, err
	}
	if p.More {
		return Outcome{Staged: true}, nil
	}
	defer s.drop(source)
	if !st.unwanted {
		return s.push(&st.push)
	}
	return s.pushUnwanted(&st.push)
}

// takePart stages one part.
func (s *Shard) takePart(source uint64, p *wire.PushData) (*stagedPush, error) {
	st := s.staged[source]
	switch {
	case p.Part < 0 || p.Part > 0 && st == nil, st != nil && p.Part != st.parts:
		return nil, fmt.Errorf("%w: part %d of batch %d of rank %d", ErrParts, p.Part, p.N, p.Rank)
	case st != nil && !sameBatch(&p.Meta, &st.push.Meta):
		return nil, fmt.Errorf("%w: parts of two batches are mixed", ErrParts)
	}
	if st == nil {
		d, err := s.content.ledger.Decide(&p.Meta)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		st = s.newStaged()
		st.push.Meta, st.unwanted = p.Meta, !d.Applies()
		s.staged[source] = st
	}
	st.parts++
	st.push.Last = p.Last
	if st.unwanted {
		return st, nil
	}
	return st, s.keep(source, st, p)
}

// sameBatch tells whether two parts are of one batch, computed under one take.
func sameBatch(a, b *wire.Meta) bool {
	return a.Pass == b.Pass && a.Rank == b.Rank && a.N == b.N && a.Token == b.Token
}

// keep copies a part's values behind those of the parts before it.
func (s *Shard) keep(source uint64, st *stagedPush, p *wire.PushData) error {
	bytes := int64(0)
	for i := range p.Dense {
		if _, err := s.params.get(p.Dense[i].Param, false); err != nil {
			return err
		}
		bytes += int64(len(p.Dense[i].Values)) * 4
	}
	for i := range p.Sparse {
		if _, err := s.params.get(p.Sparse[i].Param, true); err != nil {
			return err
		}
		bytes += int64(len(p.Sparse[i].Keys))*8 + int64(len(p.Sparse[i].Values))*4
	}
	if limit := s.stage.limit + s.denseBytes(); st.bytes+bytes > limit {
		return fmt.Errorf("%w: its parts hold more than %d bytes", ErrTooLarge, limit)
	}
	if m := s.memory; m.limit > 0 && m.room() < bytes {
		return &MemoryError{Used: m.Used(), Limit: m.limit, Need: bytes}
	}
	st.bytes += bytes
	s.stage.add(source, bytes)
	st.push.Dense = appendBlocks(st.push.Dense, p.Dense)
	st.push.Sparse = appendSections(st.push.Sparse, p.Sparse)
	return nil
}

// denseBytes is what a gradient of all the shard's dense elements takes.
func (s *Shard) denseBytes() int64 {
	n := int64(0)
	for _, d := range s.content.dense {
		if d == nil {
			continue
		}
		for i := range d.at {
			n += int64(d.at[i].n) * 4
		}
	}
	return n
}

// pushUnwanted answers a push whose values were not kept. It may have become
// one that applies (somebody else has pushed the batch before it meanwhile):
// then it has to come once more.
func (s *Shard) pushUnwanted(p *wire.PushData) (Outcome, error) {
	d, err := s.content.ledger.Decide(&p.Meta)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if d.Applies() {
		d = ledger.Decision{Verdict: ledger.GoBack}
	}
	s.content.ledger.Commit(&p.Meta, d)
	return s.outcome(&p.Meta, d.Verdict), nil
}

// DropSource forgets what a stream has staged, and what has arrived on it; to be
// called when it ends.
func (s *Shard) DropSource(source uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(source)
	if s.barrier != nil {
		s.barrier.drop(source)
	}
}

func (s *Shard) drop(source uint64) {
	st := s.staged[source]
	if st == nil {
		return
	}
	delete(s.staged, source)
	s.stage.add(source, -st.bytes)
	s.spare = st
}

// newStaged returns an empty push, with the memory of one that is done with.
func (s *Shard) newStaged() *stagedPush {
	st := s.spare
	s.spare = nil
	if st == nil {
		return &stagedPush{}
	}
	dense, sparse := st.push.Dense[:0], st.push.Sparse[:0]
	*st = stagedPush{push: wire.PushData{Dense: dense, Sparse: sparse}}
	return st
}

// appendBlocks copies blocks behind others, into the memory that earlier ones
// have left beyond the slice's end.
func appendBlocks(to, blocks []wire.DenseBlock) []wire.DenseBlock {
	for _, b := range blocks {
		if len(to) < cap(to) {
			to = to[:len(to)+1]
		} else {
			to = append(to, wire.DenseBlock{})
		}
		at := &to[len(to)-1]
		at.Param, at.Block = b.Param, b.Block
		at.Values = append(at.Values[:0], b.Values...)
	}
	return to
}

// appendSections copies rows behind others, one section for each table.
func appendSections(to, sections []wire.SparseRows) []wire.SparseRows {
	for _, v := range sections {
		i := 0
		for i < len(to) && to[i].Param != v.Param {
			i++
		}
		if i == len(to) {
			if i < cap(to) {
				to = to[:i+1]
			} else {
				to = append(to, wire.SparseRows{})
			}
			to[i].Param, to[i].Keys, to[i].Values = v.Param, to[i].Keys[:0], to[i].Values[:0]
		}
		to[i].Keys = append(to[i].Keys, v.Keys...)
		to[i].Values = append(to[i].Values, v.Values...)
	}
	return to
}
