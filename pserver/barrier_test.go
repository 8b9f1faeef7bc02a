package pserver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/pserver/ledger"
)

// turnsOf drives one shard as its trainers' streams do.
type turnsOf struct {
	t   *testing.T
	s   *Shard
	now time.Time
	rev int64
}

func newTurns(t *testing.T, steps Steps) *turnsOf {
	s, err := NewShard(testParameters(1), 0, testLanes, ShardOptions{Steps: &steps})
	require.NoError(t, err)
	return &turnsOf{t: t, s: s, now: time.Unix(0, 0)}
}

func together(t *testing.T) *turnsOf { return newTurns(t, Steps{Together: true}) }

func trainerID(n int) [16]byte { return [16]byte{15: byte(n)} }

// live says which trainers there are.
func (b *turnsOf) live(trainers ...int) {
	b.rev++
	m := map[[16]byte]string{}
	for _, n := range trainers {
		m[trainerID(n)] = fmt.Sprintf("trainer-%d", n)
	}
	b.s.SetTrainers(b.rev, m, b.now, nil)
}

// batchOf is a batch of a chunk, with one gradient for the bias and one record
// in the counts.
func batchOf(rank, n int64, gradient float32) *wire.PushData {
	return &wire.PushData{
		Meta:   wire.Meta{Rank: rank, N: n, Token: 1, Records: 4, Loss: 1},
		Dense:  []wire.DenseBlock{block(pBias, 0, gradient), block(pTotal, 0, 4)},
		Sparse: []wire.SparseRows{rows(pEmbedding, []uint64{7, uint64(10 + rank)}, gradient, 1, 2, 3, 4, 5), rows(pSeen, []uint64{7}, 1)},
	}
}

// arrive pushes on the trainer's own stream.
func (b *turnsOf) arrive(trainer int, step int64, p *wire.PushData) Outcome {
	b.t.Helper()
	out, err := b.s.Arrive(uint64(trainer), wire.Barrier{Kind: wire.Arrive, Step: step, Trainer: trainerID(trainer)}, p, b.now, nil)
	require.NoError(b.t, err)
	return out
}

func (b *turnsOf) await(trainer int, step int64) Outcome {
	b.t.Helper()
	out, _, _, err := b.s.Await(uint64(trainer), wire.Barrier{Kind: wire.Await, Step: step, Trainer: trainerID(trainer)}, b.now, nil)
	require.NoError(b.t, err)
	return out
}

func (b *turnsOf) idle(trainer int, pass int64) {
	b.t.Helper()
	require.NoError(b.t, b.s.Idle(uint64(trainer), wire.Barrier{Kind: wire.Idle, Step: pass, Trainer: trainerID(trainer)}, b.now, nil))
}

func (b *turnsOf) total() float32 { return pullBlock(b.t, b.s, pTotal, 0)[0] }

func TestBarrierWaitsForEveryLiveTrainer(t *testing.T) {
	t.Parallel()
	b := together(t)
	require.Equal(t, wire.Waiting, b.arrive(1, 0, batchOf(0, 0, 1)).Code(), "who lives is not known yet")
	b.live(1, 2)
	require.Equal(t, "step 0 waits for trainer-2", b.await(1, 0).Reason)
	require.Zero(t, b.total())
	b.arrive(2, 0, batchOf(1, 0, 3))
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	require.Equal(t, Outcome{Verdict: ledger.Applied, Next: 0}, b.await(2, 0))
	require.Equal(t, float32(8), b.total())
	require.Zero(t, b.s.barrier.bytes)

	// The same trainer twice is not two trainers.
	b.arrive(1, 1, batchOf(0, 1, 1))
	b.arrive(1, 1, batchOf(0, 1, 1))
	require.Equal(t, "step 1 waits for trainer-2", b.await(1, 1).Reason)

	// Nor is it over another stream.
	again, err := b.s.Arrive(9, wire.Barrier{Kind: wire.Arrive, Step: 1, Trainer: trainerID(1)}, batchOf(0, 1, 1), b.now, nil)
	require.NoError(t, err)
	require.Equal(t, wire.Waiting, again.Code())
	require.Equal(t, float32(8), b.total())
}

// The sum is divided by the nominal batch size times the batches of the step,
// and one update is made of it.
func TestBarrierTakesTheMeanOfTheStep(t *testing.T) {
	t.Parallel()
	b, alone := together(t), theShard(t)
	b.live(1, 2, 3)
	for i, gradient := range []float32{1, 2, 6} {
		b.arrive(i+1, 0, batchOf(int64(i), 0, gradient))
	}
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	// As one batch whose gradient is the mean of the three sums. The embedding has
	// rate 0.5 and divisor 1.
	mustPush(t, alone, &wire.PushData{Meta: wire.Meta{Token: 1}, Dense: []wire.DenseBlock{block(pBias, 0, 3)}})
	require.Equal(t, pullBlock(t, alone, pBias, 0), pullBlock(t, b.s, pBias, 0))
	before := pullRows(t, alone, pEmbedding, 7)
	require.InDeltaSlice(t, []float32{before[0] - 1.5, before[1] - 0.5, before[2] - 1}, pullRows(t, b.s, pEmbedding, 7), 1e-6)
	require.Equal(t, []float32{3}, pullRows(t, b.s, pSeen, 7), "counts are not divided")
	require.EqualValues(t, 3, totals(b.s).Batches)
}

// The sum does not depend on who comes first, nor on who computes which batch.
func TestBarrierSumsInTheOrderOfTheBatches(t *testing.T) {
	t.Parallel()
	var want string
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := together(t)
		b.live(1, 2, 3, 4)
		for step := range int64(5) {
			trainers := r.Perm(4)
			for _, rank := range r.Perm(4) {
				gradient := float32(math.Pow(10, float64((rank*7+int(step)*3)%9-4))) // sums of these depend on the order
				b.arrive(trainers[rank]+1, step, batchOf(int64(rank), step, gradient))
			}
		}
		got := fmt.Sprint(dump(t, b.s))
		if want == "" {
			want = got
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// S1: of two that push the same batch one is applied: the ledger is asked again
// when the step closes.
func TestBarrierAppliesABatchOnce(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(1, 0, batchOf(0, 0, 1))
	again := batchOf(0, 0, 1)
	again.Token = 2 // somebody else has taken the chunk
	b.arrive(2, 0, again)
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	require.Equal(t, wire.Duplicate, b.await(2, 0).Code())
	require.Equal(t, float32(4), b.total())
	require.EqualValues(t, 1, totals(b.s).Batches)
}

// S2: a batch whose step is closed is not applied, and is told the open step;
// sent again under that, it is.
func TestBarrierTellsTheOpenStep(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1)
	for n := range int64(3) {
		b.arrive(1, n, batchOf(0, n, 1))
	}
	b.live(1, 2)
	late := b.arrive(2, 0, batchOf(1, 0, 1))
	require.Equal(t, Outcome{Closed: true, Next: 3}, late)
	require.Equal(t, Outcome{Closed: true, Next: 3}, b.await(2, 0))
	require.Equal(t, float32(12), b.total())
	b.arrive(1, 3, batchOf(0, 3, 1))
	require.Equal(t, wire.Waiting, b.await(1, 3).Code(), "the other has not arrived")
	b.arrive(2, 3, batchOf(1, 0, 1))
	require.Equal(t, wire.Applied, b.await(1, 3).Code())
	require.Equal(t, float32(20), b.total())
}

// S3: a duplicate is an arrival, and adds nothing to sum or divisor.
func TestBarrierCountsADuplicateAsArrival(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1)
	b.arrive(1, 0, batchOf(0, 0, 1))
	b.live(1, 2)
	b.arrive(1, 1, batchOf(5, 0, 1))
	known := batchOf(0, 0, 1)
	known.Token = 2
	require.Equal(t, wire.Duplicate, b.arrive(2, 1, known).Code())
	require.Equal(t, wire.Duplicate, b.await(2, 1).Code())
	require.Equal(t, wire.Applied, b.await(1, 1).Code())
	require.Equal(t, float32(8), b.total())

	// Also if its step is closed: who resumes a batch may know no better one.
	require.Equal(t, wire.Duplicate, b.arrive(2, 0, known).Code())
}

// A trainer at a later step has arrived; the steps that are nobody's are passed.
func TestBarrierPassesStepsOfNobody(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(1, 9, batchOf(0, 0, 1))
	require.Equal(t, wire.Waiting, b.await(1, 9).Code())
	b.arrive(2, 4, batchOf(1, 0, 1))
	require.Equal(t, wire.Applied, b.await(2, 4).Code(), "the other is at a later step")
	require.Equal(t, wire.Waiting, b.await(1, 9).Code())
	b.arrive(2, 9, batchOf(1, 1, 1))
	require.Equal(t, wire.Applied, b.await(1, 9).Code())
}

// Who is idle is not waited for, until the first batch of a pass in which it may
// have work.
func TestBarrierDoesNotWaitForTheIdle(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(1, 0, batchOf(0, 0, 1))
	b.idle(2, 0)
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	b.arrive(1, 1, batchOf(0, 1, 1))
	require.Equal(t, wire.Applied, b.await(1, 1).Code())
	next := batchOf(0, 0, 1)
	next.Pass = 1
	b.arrive(1, 2, next)
	require.Equal(t, "step 2 waits for trainer-2", b.await(1, 2).Reason)
	b.idle(2, 1)
	require.Equal(t, wire.Applied, b.await(1, 2).Code())

	b.arrive(2, 2, batchOf(3, 0, 1)) // back, and told where the others are
	b.arrive(2, 3, batchOf(3, 0, 1))
	require.Equal(t, "step 3 waits for trainer-1", b.await(2, 3).Reason)
	b.idle(1, 1)
	require.Equal(t, wire.Applied, b.await(2, 3).Code())
}

// A word of a trainer that comes late, over a stream of before, takes the place of
// the newest one, and its stream's end leaves nothing. What holds still is said again.
func TestBarrierHearsAnOldWordLate(t *testing.T) {
	t.Parallel()
	b := together(t)
	old := func(kind wire.BarrierKind) {
		at := wire.Barrier{Kind: kind, Trainer: trainerID(2)}
		if kind == wire.Idle {
			require.NoError(t, b.s.Idle(22, at, b.now, nil))
			return
		}
		_, err := b.s.Arrive(22, at, batchOf(1, 0, 1), b.now, nil)
		require.NoError(t, err)
	}
	b.live(1, 2)
	b.arrive(1, 0, batchOf(0, 0, 1))
	b.arrive(2, 0, batchOf(1, 0, 1))
	b.idle(2, 0)
	old(wire.Arrive)
	b.arrive(1, 1, batchOf(0, 1, 1))
	require.Equal(t, "step 1 waits for trainer-2", b.await(1, 1).Reason)
	b.s.DropSource(22)
	require.Equal(t, "step 1 waits for trainer-2", b.await(1, 1).Reason)
	b.idle(2, 0)
	require.Equal(t, wire.Applied, b.await(1, 1).Code())

	// A batch that the shard had, and has answered at once; and one that waits.
	for i, p := range []*wire.PushData{batchOf(1, 0, 1), batchOf(1, 1, 1)} {
		step := int64(2 + i)
		for _, kind := range []wire.BarrierKind{wire.Arrive, wire.Idle} {
			b.arrive(2, step, p)
			old(kind)
			require.Equal(t, wire.Closed, b.await(2, step).Code(), "the batch is asked for again")
		}
		b.arrive(2, step, p)
		b.arrive(1, step, batchOf(0, step, 1))
		require.Equal(t, wire.Applied, b.await(1, step).Code())
		require.False(t, b.await(2, step).Code().Refused())
	}
	require.Equal(t, float32(4*6), b.total())
}

// What became of a batch is told as often as it is asked for, and counts once.
func TestBarrierTellsTwice(t *testing.T) {
	t.Parallel()
	for _, steps := range []Steps{{Together: true}, {Ahead: 1}} {
		b := newTurns(t, steps)
		b.live(1)
		first := b.arrive(1, 0, batchOf(0, 0, 1))
		told := b.await(1, 0)
		require.Equal(t, wire.Applied, told.Code())
		require.Equal(t, !steps.Together, told.Told, "with a bound the push itself was answered")
		require.False(t, first.Told)
		require.True(t, b.await(1, 0).Told)
	}
}

// Whoever leaves is not waited for; news that are older do not bring it back.
func TestBarrierOfThoseWhoLeave(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(1, 0, batchOf(0, 0, 1))
	b.arrive(2, 0, batchOf(1, 0, 1))
	b.arrive(1, 1, batchOf(0, 1, 1))
	b.live(1)
	require.Equal(t, wire.Applied, b.await(1, 1).Code())
	b.rev -= 2
	b.live(1, 2)
	b.arrive(1, 2, batchOf(0, 2, 1))
	require.Equal(t, wire.Applied, b.await(1, 2).Code())
}

// What a stream has brought ends with it: the batch is not applied, and its
// trainer has not arrived.
func TestBarrierForgetsWithTheStream(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(2, 0, batchOf(1, 0, 1))
	require.Positive(t, b.s.barrier.bytes)
	b.s.DropSource(2)
	require.Zero(t, b.s.barrier.bytes)
	b.arrive(1, 0, batchOf(0, 0, 1))
	require.Equal(t, "step 0 waits for trainer-2", b.await(1, 0).Reason)
	b.arrive(2, 0, batchOf(1, 0, 1))
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	require.Equal(t, float32(8), b.total())
}

// A void batch, and one that is not finite here, are arrivals, not contributions.
func TestBarrierOfBatchesWithoutValues(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]*wire.PushData{
		"void":       {Meta: wire.Meta{Rank: 1, Token: 1, Records: 4, Void: true}},
		"non-finite": batchOf(1, 0, float32(math.Inf(1))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, alone := together(t), theShard(t)
			b.live(1, 2)
			b.arrive(1, 0, batchOf(0, 0, 1))
			require.Equal(t, wire.Waiting, b.arrive(2, 0, bad).Code())
			require.Equal(t, wire.Skipped, b.await(2, 0).Code())
			require.Equal(t, wire.Applied, b.await(1, 0).Code())
			mustPush(t, alone, batchOf(0, 0, 1))
			require.Equal(t, pullBlock(t, alone, pBias, 0), pullBlock(t, b.s, pBias, 0), "the divisor has one batch")
			require.Equal(t, pullRows(t, alone, pEmbedding, 7), pullRows(t, b.s, pEmbedding, 7))
			require.EqualValues(t, 1, totals(b.s).Skipped)
		})
	}
}

// A push in parts waits with all of them, and its bytes are not those of parts
// that are missing: nobody stops reading because of them.
func TestBarrierOfParts(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	first, second := batchOf(0, 0, 1), batchOf(0, 0, 1)
	first.More, first.Sparse = true, nil
	second.Part, second.Dense = 1, nil
	require.True(t, b.arrive(1, 0, first).Staged)
	require.Positive(t, b.s.stage.Held())
	require.Equal(t, wire.Waiting, b.arrive(1, 0, second).Code())
	require.Zero(t, b.s.stage.Held())
	b.arrive(2, 0, batchOf(1, 0, 1))
	require.Equal(t, wire.Applied, b.await(1, 0).Code())
	require.Equal(t, float32(8), b.total())
	require.Equal(t, []float32{2}, pullRows(t, b.s, pSeen, 7))
}

// Nothing is applied by whoever is not the owner any more.
func TestBarrierOfAnOwnerNoMore(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2)
	b.arrive(1, 0, batchOf(0, 0, 1))
	b.rev++
	b.s.SetTrainers(b.rev, map[[16]byte]string{trainerID(1): "trainer-1"}, b.now, func() bool { return false })
	require.Zero(t, b.total())
	_, err := b.s.Arrive(2, wire.Barrier{Trainer: trainerID(2)}, batchOf(1, 0, 1), b.now, func() bool { return false })
	require.ErrorIs(t, err, ErrNotOwner)
	_, _, _, err = b.s.Await(1, wire.Barrier{Trainer: trainerID(1)}, b.now, func() bool { return false })
	require.ErrorIs(t, err, ErrNotOwner)
}

// A restored shard adopts the step of the first request. Its first barrier ends
// at the time-out if somebody does not come, the second one does not.
func TestBarrierInRecovery(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.s.StartSteps(StartRecovery, 10*time.Second)
	b.live(1, 2)
	b.now = b.now.Add(time.Minute) // before the first request no time passes
	b.arrive(1, 700, batchOf(0, 0, 1))
	require.Equal(t, "step 700 waits for trainer-2", b.await(1, 700).Reason)
	b.now = b.now.Add(10*time.Second - 1)
	require.Equal(t, wire.Waiting, b.await(1, 700).Code())
	b.now = b.now.Add(1)
	require.Equal(t, wire.Applied, b.await(1, 700).Code())
	require.False(t, b.s.barrier.recovering)
	b.arrive(1, 701, batchOf(0, 1, 1))
	b.now = b.now.Add(time.Hour)
	require.Equal(t, wire.Waiting, b.await(1, 701).Code())

	c := together(t)
	c.s.StartSteps(StartUnknown, 10*time.Second)
	c.live(1)
	c.arrive(1, 700, batchOf(0, 0, 1))
	c.now = c.now.Add(time.Hour)
	require.Equal(t, wire.Waiting, c.await(1, 700).Code())
	require.Contains(t, c.await(1, 700).Reason, "--recovery never")
}

// Bounded: what arrives is applied, and who is too far ahead of the slowest that
// has work waits.
func TestBoundedStaleness(t *testing.T) {
	t.Parallel()
	b := newTurns(t, Steps{Ahead: 2})
	b.live(1, 2, 3)
	for n := range int64(2) {
		require.Equal(t, wire.Applied, b.arrive(1, n, batchOf(0, n, 1)).Code())
		require.Equal(t, wire.Applied, b.await(1, n).Code())
	}
	b.idle(3, 0)
	require.Equal(t, wire.Applied, b.arrive(1, 2, batchOf(0, 2, 1)).Code())
	require.Equal(t, float32(12), b.total(), "it is applied at once")
	require.Equal(t, "step 0 waits for trainer-2", b.await(1, 2).Reason)
	require.Equal(t, &BarrierStatus{Known: true, Lead: 2, Batches: 1, Missing: []string{"trainer-2"}}, b.s.barrier.status())
	b.arrive(2, 0, batchOf(1, 0, 1))
	require.Equal(t, wire.Applied, b.await(1, 2).Code())
	require.Equal(t, wire.Applied, b.arrive(1, 3, batchOf(0, 3, 1)).Code())
	require.Equal(t, wire.Waiting, b.await(1, 3).Code())
	b.live(1, 3) // the slow one is gone
	require.Equal(t, wire.Applied, b.await(1, 3).Code())

	// A joiner is as far as the slowest, not at the beginning.
	b.live(1, 3, 4)
	require.Equal(t, wire.Applied, b.arrive(4, 0, batchOf(2, 0, 1)).Code())
	require.EqualValues(t, 4, b.s.barrier.step)
	require.EqualValues(t, 5, b.await(4, 0).Next+1, "its next step")
}

// A step that makes a weight non-finite names the batch to blame.
func TestBarrierBlamesTheLargestGradient(t *testing.T) {
	t.Parallel()
	b := together(t)
	b.live(1, 2, 3)
	for i, gradient := range []float32{1, 3e38, 2} {
		p := batchOf(int64(i), 0, 1)
		p.Sparse = []wire.SparseRows{rows(pEmbedding, []uint64{7}, gradient, 0, 0)}
		p.Sparse[0].Values[0] = gradient
		if i == 2 {
			p.Sparse[0].Values[0] = 3e38
			p.Dense = nil
			p.Rank = 5
		}
		at := wire.Barrier{Kind: wire.Arrive, Trainer: trainerID(i + 1)}
		_, err := b.s.Arrive(uint64(i+1), at, p, b.now, nil)
		if i < 2 {
			require.NoError(t, err)
			continue
		}
		var broken *NonFiniteError
		require.ErrorAs(t, err, &broken)
		require.Equal(t, "embedding", broken.Parameter)
		require.EqualValues(t, 7, broken.Row)
		require.EqualValues(t, 1, broken.Rank, "the first of the largest")
	}
	_, _, _, err := b.s.Await(1, wire.Barrier{Trainer: trainerID(1)}, b.now, nil)
	require.ErrorIs(t, err, ErrBroken)
}

func TestStepsAreForJobsThatHaveThem(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	_, err := s.Arrive(1, wire.Barrier{}, batchOf(0, 0, 1), time.Time{}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, _, _, err = s.Await(1, wire.Barrier{}, time.Time{}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, s.Idle(1, wire.Barrier{}, time.Time{}, nil), ErrInvalid)
}
