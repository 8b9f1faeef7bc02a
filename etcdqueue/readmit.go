package etcdqueue

import (
	"context"
	"errors"
	"fmt"

	"starfish/internal/store"
)

// Readmit takes quarantined chunks back, one transaction for each: it removes
// `failed/<chunk>`, and in the current pass, which it returns, the chunk is Todo
// again if it was Failed there, with all its tries. In passes that are over it
// stays Failed. What ledgers have counted of it in the current pass stays
// counted: whoever takes it goes on behind that.
//
// The transaction compares `state` and writes it, so that no Turn that was
// decided before it is written after it. After an error the chunks before the
// one that it names are back.
//
// Errors: ErrNotQuarantined; ErrPhase: the job does not train any more, or, in
// the last pass, is at work on reopened chunks. There a shard may have finished
// with the pass already, and would not ask for the chunk again after a restore.
func (q *Queue) Readmit(ctx context.Context, chunks []int64) (pass int, err error) {
	if err := q.lock(ctx); err != nil {
		return 0, err
	}
	defer q.unlock()
	for _, chunk := range chunks {
		if pass, err = q.readmit(ctx, chunk); err != nil {
			return pass, fmt.Errorf("readmit chunk %d: %w", chunk, err)
		}
	}
	return pass, nil
}

func (q *Queue) readmit(ctx context.Context, chunk int64) (int, error) {
	unsure := false
	for attempt := 0; ; attempt++ {
		s, p, id, failed, err := q.readQuarantined(ctx, chunk)
		if errors.Is(err, ErrNoPass) { // it has turned, and was removed, just now
			err = q.pause(ctx, attempt)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return 0, err
		}
		if !failed.Exists() {
			if unsure {
				return s.Pass, nil // an attempt whose answer was lost has done it
			}
			return 0, ErrNotQuarantined
		}
		if err := q.readmits(s); err != nil {
			return 0, err
		}
		conds := []store.Cmp{s.Guard(), store.Unchanged(failedKey(chunk), failed.ModRev)}
		puts := []store.Op{store.Delete(failedKey(chunk)), store.Put(stateKey, s.encode(), 0)}
		old := p.lanes[id.lane]
		if l, ok := old.lane.Readmit(p.place(chunk)); ok {
			conds = append(conds, store.Unchanged(id.key(), old.rev))
			puts = append(puts, store.Put(id.key(), l.Encode(), 0))
		}
		a, err := q.commit(ctx, conds, nil, puts)
		if err == nil && a.outcome == written {
			return s.Pass, nil
		}
		if err != nil {
			if unsure = true; attempt >= maxFailures || ctx.Err() != nil || fatal(err) {
				return 0, err
			}
		}
		if err := q.pause(ctx, attempt); err != nil {
			return 0, err
		}
	}
}

// readQuarantined reads `state`, the chunk's lane in the current pass, and its
// record of quarantine.
func (q *Queue) readQuarantined(ctx context.Context, chunk int64) (State, *passView, laneID, store.KV, error) {
	var id laneID
	s, err := q.State(ctx)
	if err != nil {
		return s, nil, id, store.KV{}, err
	}
	_, p, _, err := q.readPass(ctx, s.Pass, []int{})
	if err != nil {
		return s, nil, id, store.KV{}, err
	}
	if chunk < 0 || chunk >= p.manifest.Chunks {
		return s, nil, id, store.KV{}, fmt.Errorf("%w: there are %d chunks", ErrNotQuarantined, p.manifest.Chunks)
	}
	id = laneID{s.Pass, int(p.rank(chunk) % int64(len(p.lanes)))}
	// Read last, and under the same state as before: see the guard.
	_, p, _, err = q.readPass(ctx, s.Pass, []int{id.lane})
	if err != nil {
		return s, nil, id, store.KV{}, err
	}
	failed, err := store.Lookup(ctx, q.c.Store, failedKey(chunk))
	return s, p, id, failed, err
}

// readmits tells why the state does not allow a readmission, if it does not.
func (q *Queue) readmits(s State) error {
	switch {
	case s.Phase != PhaseTraining:
		return fmt.Errorf("%w: the job is %s, no pass is left", ErrPhase, s.Phase)
	case s.Pass+1 >= q.c.Passes && len(s.Reopened) > 0:
		return fmt.Errorf("%w: chunks of the last pass are being trained again after a loss", ErrPhase)
	}
	return nil
}

// Rank is the place of a chunk in the order of a pass of m.
func (q *Queue) Rank(m Manifest, pass int, chunk int64) int64 {
	return newPassView(&q.c, pass, m, 0, 0, 1).rank(chunk)
}

// Chunk is the chunk at a rank of a pass of m.
func (q *Queue) Chunk(m Manifest, pass int, rank int64) int64 {
	return newPassView(&q.c, pass, m, 0, 0, 1).chunk(rank)
}

// rank is the place of a chunk in the pass's order.
func (p *passView) rank(chunk int64) int64 {
	if p.shuffle {
		return p.order.Inverse(chunk)
	}
	return chunk
}

// place is the position of a chunk in its lane.
func (p *passView) place(chunk int64) int64 { return p.rank(chunk) / int64(len(p.lanes)) }
