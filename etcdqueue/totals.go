package etcdqueue

import (
	"context"
	"fmt"
	"maps"

	"starfish/internal/store"
)

// Totals sums up all passes that have begun when it is called, the removed ones
// included, and returns `state` as it last read it. It reads every pass that is
// still there once, some of them in each read; so it ends however fast passes
// turn, and is exact if nothing changes meanwhile, which is so if the State has
// not changed and nothing was Pending.
func (q *Queue) Totals(ctx context.Context) (Totals, State, error) {
	sums, s, err := q.PassTotals(ctx)
	total := s.Past
	for _, sum := range sums {
		total = total.Add(sum)
	}
	return total, s, err
}

// PassTotals are the sums of each pass that is still there, read as by Totals;
// those of the others, together, are Past of the State.
func (q *Queue) PassTotals(ctx context.Context) (map[int]Totals, State, error) {
	s, err := q.State(ctx)
	if err != nil {
		return nil, s, fmt.Errorf("sum up the passes: %w", err)
	}
	sums := make(map[int]Totals)
	last := s.Pass
	for next := s.Floor; next <= last; {
		group := make([]int, 0, groupPasses)
		for next = max(next, s.Floor); next <= last && len(group) < groupPasses; next++ {
			group = append(group, next)
		}
		if s, err = q.sumPasses(ctx, group, sums); err != nil {
			return nil, s, fmt.Errorf("sum up the passes: %w", err)
		}
	}
	maps.DeleteFunc(sums, func(pass int, _ Totals) bool { return pass < s.Floor }) // they are in Past by now
	return sums, s, nil
}

// sumPasses reads passes at one revision and notes their sums; those that have
// been removed are left out.
func (q *Queue) sumPasses(ctx context.Context, passes []int, sums map[int]Totals) (State, error) {
	ops := []store.Op{store.Get(stateKey)}
	for _, p := range passes {
		ops = append(ops, store.Get(passKey(p)), store.Range(lanesPrefix(p), store.PrefixEnd(lanesPrefix(p)), 0))
	}
	r, err := store.Read(ctx, q.c.Store, ops...)
	if err != nil {
		return State{}, err
	}
	s, err := q.decodeState(r.First(0))
	if err != nil {
		return State{}, err
	}
	for i, number := range passes {
		if number < s.Floor || number > s.Pass {
			continue
		}
		p, err := q.decodePass(s, number, r.First(1+2*i), r.KVs[2+2*i], r.Revision)
		if err != nil {
			return State{}, err
		}
		sums[number] = Sum(p.all())
	}
	return s, nil
}

// Progress estimates Totals in two small reads, whatever the number of passes:
// it reads the current pass, up to some reopened ones, and one of the finished
// passes that have not been removed, and takes the others of them to be like
// that one.
func (q *Queue) Progress(ctx context.Context) (Totals, State, error) {
	s, err := q.State(ctx)
	if err != nil {
		return Totals{}, s, fmt.Errorf("estimate the sums: %w", err)
	}
	sample := s.newestFinished()
	passes := []int{s.Pass}
	if sample >= s.Floor {
		passes = append(passes, sample)
	}
	for _, p := range s.Reopened {
		if p != s.Pass && len(passes) < groupPasses {
			passes = append(passes, p)
		}
	}
	sums := make(map[int]Totals)
	now, err := q.sumPasses(ctx, passes, sums)
	if err != nil {
		return Totals{}, now, fmt.Errorf("estimate the sums: %w", err)
	}
	return estimate(now, sums, sample), now, nil
}

// newestFinished is the last pass before the current one of which nothing was
// reopened.
func (s State) newestFinished() int {
	pass := s.Pass - 1
	for i := len(s.Reopened) - 1; i >= 0 && s.Reopened[i] >= pass; i-- {
		if s.Reopened[i] == pass {
			pass--
		}
	}
	return pass
}

// estimate adds up what is known of some passes from the floor on, and fills in
// the sample for those of which nothing is.
func estimate(s State, sums map[int]Totals, sample int) Totals {
	total, unknown := s.Past, int64(s.Pass-s.Floor+1)
	for pass, sum := range sums {
		if pass >= s.Floor {
			total, unknown = total.Add(sum), unknown-1
		}
	}
	if _, ok := sums[s.Pass]; !ok {
		unknown-- // it has just begun
	}
	like := sums[sample] // none: there are only reopened passes
	if s.Floor > 0 && like.Chunks == 0 {
		like = s.Past.over(int64(s.Floor))
	}
	return total.Add(like.times(unknown))
}

func (t Totals) times(n int64) Totals {
	return t.each(func(x int64) int64 { return x * n })
}

// over is the mean of n passes.
func (t Totals) over(n int64) Totals {
	return t.each(func(x int64) int64 { return x / n })
}

func (t Totals) each(f func(int64) int64) Totals {
	return Totals{
		Chunks: f(t.Chunks), Todo: f(t.Todo), Pending: f(t.Pending), Complete: f(t.Complete), Failed: f(t.Failed), Takes: f(t.Takes),
		Requeued: f(t.Requeued), Reopened: f(t.Reopened), Speculated: f(t.Speculated), Batches: f(t.Batches), Records: f(t.Records), Bad: f(t.Bad),
	}
}
