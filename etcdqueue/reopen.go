package etcdqueue

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// Reopen makes those of positions that are Complete Todo again, because a shard
// has lost them: see ReopenLanes.
func (q *Queue) Reopen(ctx context.Context, pass, lane int, positions ranges.Set, guard func() []store.Cmp) (int64, error) {
	return q.ReopenLanes(ctx, pass, map[int]ranges.Set{lane: positions}, guard)
}

// ReopenLanes makes positions that are Complete Todo again, up to 32 lanes in a
// transaction. The same transaction writes `state`: it lists the pass, also if
// it is the current one, and lets a draining job train again. So no reopened
// chunk lies in a pass that nobody looks at, and no Turn that was decided
// before the reopen is written after it. guard, which may be nil, gives the
// conditions under which the caller may reopen, for each attempt: its own
// entry in `owners`. It returns how many chunks were reopened; positions that
// are not Complete any more count for nothing.
//
// Errors: ErrGuard, ErrNoPass (below the floor, where nothing may be reopened),
// ErrPhase (the job has ended).
func (q *Queue) ReopenLanes(ctx context.Context, pass int, lanes map[int]ranges.Set, guard func() []store.Cmp) (int64, error) {
	if err := q.lock(ctx); err != nil {
		return 0, err
	}
	defer q.unlock()
	var total int64
	for group := range slices.Chunk(slices.Sorted(maps.Keys(lanes)), maxTxnLanes) {
		n, err := q.reopenGroup(ctx, pass, group, lanes, guard)
		total += n
		if err != nil {
			return total, fmt.Errorf("reopen pass %d lanes %v: %w", pass, group, err)
		}
	}
	return total, nil
}

func (q *Queue) reopenGroup(ctx context.Context, pass int, group []int, lanes map[int]ranges.Set, guard func() []store.Cmp) (int64, error) {
	for attempt := 0; ; attempt++ {
		s, p, _, err := q.readPass(ctx, pass, group)
		if err != nil {
			return 0, err
		}
		if s.Phase.Ended() {
			return 0, fmt.Errorf("%w: the job is %s", ErrPhase, s.Phase)
		}
		if last := group[len(group)-1]; group[0] < 0 || last >= s.Lanes {
			return 0, fmt.Errorf("%w: lane %d of %d", ErrMismatch, last, s.Lanes)
		}
		conds := []store.Cmp{s.Guard()}
		changed := make(map[laneID]Lane)
		var puts []store.Op
		var total int64
		for _, lane := range group {
			l, n := p.lanes[lane].lane.Reopen(lanes[lane])
			if n == 0 {
				continue
			}
			total += n
			id := laneID{pass, lane}
			changed[id] = l
			conds = append(conds, store.Unchanged(id.key(), p.lanes[lane].rev))
			puts = append(puts, store.Put(id.key(), l.Encode(), 0))
		}
		if total == 0 {
			return 0, nil
		}
		var guards []store.Cmp
		if guard != nil {
			guards = guard()
		}
		after := s.reopened(pass)
		puts = append(puts, store.Put(stateKey, after.encode(), 0))
		a, err := q.commit(ctx, conds, guards, puts)
		switch {
		case err != nil:
			return 0, err
		case a.outcome == written:
			q.wrote(changed, a.revision)
			return total, nil
		case a.outcome == guarded:
			return 0, ErrGuard
		}
		if err := q.pause(ctx, attempt); err != nil {
			return 0, err
		}
	}
}
