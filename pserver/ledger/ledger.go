// Package ledger is a shard's memory of the batches that it has applied. It is
// what makes every record change every shard exactly once, whatever is killed,
// retried, delayed or doubled on the way.
//
// The package is a pure core: no clock, no goroutine, no lock, no I/O. A shard
// calls it under its own lock, and saves it in the same cut as its weights, so
// that a ledger always describes the weights that it lies beside.
//
// # What it decides
//
// The identity of a batch is (pass, rank, n): batch n of the chunk at that rank
// of that pass, whoever computes it. For each chunk in flight the ledger holds
// the highest token seen and the next batch number; a push is then
//
//	chunk finished                                  Duplicate
//	token lower than seen for a chunk in flight     Stale
//	n below next                                    Duplicate
//	n = next                                        Applied; next+1; Last finishes the chunk
//	n = next, void                                  Skipped; next+1
//	n above next                                    GoBack, with next
//	n above next, policy skip, touched by a restore,
//	  and the trainer means it (Gap)                AppliedAfterGap; the gap is lost
//
// Decide only looks. Commit notes what was decided, after the shard has applied
// the gradient; between the two the shard may turn Applied into Skipped
// (Decision.Skip) when it finds the gradient non-finite.
//
// # Size
//
// Finished chunks are ranges of positions per (pass, lane): the chunk at rank r
// lies in lane r mod L at position r div L. A pass that the shard has compared
// with the queue's lanes collapses to its sums (Collapse). So the size grows
// with the chunks in flight and with the number of gaps, not with the data.
// Under policy skip it also has a number for each chunk that was finished since
// the last comparison (Reckon).
//
// # Invariants
//
//   - next of a chunk never decreases, and a finished chunk never becomes
//     unfinished: what was a Duplicate stays one.
//   - Batches + Skipped + Lost of a pass is the number of distinct batches of
//     the pass that will never be applied again.
//   - Records, Loss and Weight depend only on which batches have been counted, not on
//     whether this shard applied or skipped them, so all shards agree on them.
//   - A refused push (Stale, GoBack) changes no sum.
package ledger

import (
	"errors"
	"fmt"
	"math"

	"starfish/internal/ranges"
	"starfish/internal/wire"
)

// The limits of what a push may name, so that a broken client cannot make the
// ledger grow without bound.
const (
	MaxPass     = 1<<31 - 1
	MaxRank     = ranges.MaxValue
	MaxInFlight = 1 << 20
)

// ErrInvalid is wrapped by the errors of pushes that no correct client sends.
var ErrInvalid = errors.New("invalid batch")

// Policy says what happens to batches that a restore has lost.
type Policy uint8

const (
	// Replay: the trainer goes back and sends them again.
	Replay Policy = iota
	// Skip: they are counted as lost.
	Skip
)

// Verdict is what the ledger makes of a push.
type Verdict uint8

// The verdicts. Stale and GoBack are refusals, the others acknowledge.
const (
	Applied Verdict = iota
	AppliedAfterGap
	Skipped
	Duplicate
	Stale
	GoBack
)

var verdictNames = [...]string{"applied", "applied after a gap", "skipped", "duplicate", "stale", "go back"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Decision is the answer to one push, to be handed to Commit unchanged, or
// after Skip.
type Decision struct {
	Verdict Verdict
	// Lost is the size of the gap that is given up by this push.
	Lost int64
}

// Applies tells whether the shard has to apply the gradient.
func (d Decision) Applies() bool { return d.Verdict == Applied || d.Verdict == AppliedAfterGap }

// Skip is the decision for the same push when the shard has found its gradient
// non-finite. It changes only a decision that applies.
func (d Decision) Skip() Decision {
	if d.Applies() {
		d.Verdict = Skipped
	}
	return d
}

// Sums are what a shard has counted in one pass.
type Sums struct {
	// Batches were applied, Skipped were void or non-finite here, Lost were
	// given up: under policy skip, or by Forget.
	Batches int64 `json:"batches"`
	Skipped int64 `json:"skipped"`
	Lost    int64 `json:"lost"`
	// Records, Loss and Weight are those of the applied and skipped batches:
	// Loss adds up weight × loss, Weight the weights. A batch whose loss is not
	// finite is left out of both.
	Records int64   `json:"records"`
	Loss    float64 `json:"loss"`
	Weight  float64 `json:"weight"`
}

// MeanLoss is the loss by weight; ok is false where nothing has a weight.
func (s *Sums) MeanLoss() (loss float64, ok bool) {
	return s.Loss / s.Weight, s.Weight > 0
}

// Add adds the sums of another pass.
func (s *Sums) Add(o Sums) {
	s.Batches += o.Batches
	s.Skipped += o.Skipped
	s.Lost += o.Lost
	s.Records += o.Records
	s.Loss += o.Loss
	s.Weight += o.Weight
}

// counted is the number of distinct batches.
func (s *Sums) counted() int64 { return s.Batches + s.Skipped + s.Lost }

// Counters are counted over the shard's whole life. They are saved with the
// ledger, so a restore sets them back like everything else.
type Counters struct {
	Duplicates int64 `json:"duplicates"`
	Stale      int64 `json:"stale"`
	GoBacks    int64 `json:"go_backs"`
	// Replayed batches were applied again after a restore had lost them, as far
	// as the shard can know: batches of reopened chunks, and those between the
	// restored next and the batch whose trainer was told to go back.
	Replayed int64 `json:"replayed"`
	// Losses is the number of restores after which batches were lost for good.
	Losses int64 `json:"losses"`
}

// Ledger is the state. It is not safe for concurrent use.
type Ledger struct {
	lanes    int64
	policy   Policy
	restored bool
	// charged tells that the newest restore is one of the counted Losses.
	charged bool
	// through is the number of leading passes that are finished on this shard
	// without exception: past stands for all of them. passes has the others.
	through int
	past    pass
	passes  map[int]*pass
	flight  map[chunk]inFlight
	// recent are, under policy skip, the chunks that are finished here and were
	// not Complete in the queue at the last look: how many batches each has.
	recent   map[chunk]int64
	counters Counters
	// counted is the number of batches in all the sums.
	counted int64
}

type chunk struct {
	pass int
	rank int64
}

type inFlight struct {
	token int64
	next  int64
	// replay is the first batch number that counts as new again.
	replay int64
	// touched marks a chunk of which a restore may have lost batches.
	touched bool
}

// pass is one pass's part of the ledger. After the collapse every chunk is
// finished, except the failed ones.
type pass struct {
	sums      Sums
	collapsed bool
	lanes     []lane
}

type lane struct {
	finished ranges.Set // before the collapse
	failed   ranges.Set // after the collapse: not finished
	reopened ranges.Set // to be replayed
	// reckoned is, under policy skip, the lane's sum of batches in the queue when
	// it was last looked at: all of them are counted here by then.
	reckoned int64
}

// New returns the ledger of a shard that has applied nothing, in a job whose
// queue has so many lanes.
func New(lanes int, policy Policy) *Ledger {
	if lanes <= 0 {
		panic("ledger: a queue has at least one lane")
	}
	return &Ledger{
		lanes: int64(lanes), policy: policy,
		past: pass{collapsed: true}, passes: map[int]*pass{}, flight: map[chunk]inFlight{}, recent: map[chunk]int64{},
	}
}

// MarkRestored notes that the shard has lost what was applied after its
// newest checkpoint, or everything if it has none: from now on a gap may be
// the shard's fault. Restore does it by itself.
func (l *Ledger) MarkRestored() {
	l.restored, l.charged = true, false
	for c, f := range l.flight {
		f.touched = true
		l.flight[c] = f
	}
}

// Decide says what a push is. It changes nothing.
func (l *Ledger) Decide(p *wire.Meta) (Decision, error) {
	if err := validate(p); err != nil {
		return Decision{}, err
	}
	if l.finished(p.Pass, p.Rank) {
		return Decision{Verdict: Duplicate}, nil
	}
	f, known := l.flight[chunk{p.Pass, p.Rank}]
	switch {
	case !known && len(l.flight) >= MaxInFlight:
		return Decision{}, fmt.Errorf("%w: %d chunks are in flight already", ErrInvalid, len(l.flight))
	case known && p.Token < f.token:
		return Decision{Verdict: Stale}, nil
	case p.N < f.next:
		return Decision{Verdict: Duplicate}, nil
	case p.N > f.next && !(p.Gap && l.mayLose(f, known)):
		return Decision{Verdict: GoBack}, nil
	}
	d := Decision{Verdict: Applied, Lost: p.N - f.next}
	if d.Lost > 0 {
		d.Verdict = AppliedAfterGap
	}
	// The loss is the same for all shards, and so is this decision.
	if p.Void || !finite(p.Loss) {
		d = d.Skip()
	}
	return d, nil
}

// mayLose tells whether a gap in the chunk is accepted.
func (l *Ledger) mayLose(f inFlight, known bool) bool {
	if known {
		return l.policy == Skip && f.touched
	}
	return l.policy == Skip && l.restored
}

// Commit notes the push as decided. The decision must come from Decide for the
// same push, with no other Commit between.
func (l *Ledger) Commit(p *wire.Meta, d Decision) {
	c := chunk{p.Pass, p.Rank}
	switch d.Verdict {
	case Stale:
		l.counters.Stale++
	case Duplicate:
		l.counters.Duplicates++
		if f, known := l.flight[c]; known {
			f.token = max(f.token, p.Token)
			l.flight[c] = f
		}
	case GoBack:
		l.counters.GoBacks++
		f := l.open(c, p)
		if f.touched {
			f.replay = max(f.replay, p.N)
		}
		l.flight[c] = f
	default:
		l.advance(c, p, d)
	}
}

// advance notes a batch that will not be applied again.
func (l *Ledger) advance(c chunk, p *wire.Meta, d Decision) {
	f := l.open(c, p)
	l.count(p, d)
	if d.Applies() && p.N < f.replay {
		l.counters.Replayed++
	}
	f.next = p.N + 1
	f.touched = false
	if p.Last {
		delete(l.flight, c)
		l.finish(p.Pass, p.Rank)
		if l.policy == Skip {
			l.recent[c] = f.next
		}
		return
	}
	l.flight[c] = f
}

// open is the chunk's entry, made if it has none, with the push's token noted.
func (l *Ledger) open(c chunk, p *wire.Meta) inFlight {
	f, known := l.flight[c]
	if !known {
		f.touched = l.restored
		if l.reopened(c) {
			f.replay = math.MaxInt64
		}
	}
	f.token = max(f.token, p.Token)
	return f
}

func (l *Ledger) count(p *wire.Meta, d Decision) {
	s := &l.pass(p.Pass).sums
	l.counted++
	l.lose(s, d.Lost)
	if d.Verdict == Skipped {
		s.Skipped++
	} else {
		s.Batches++
	}
	s.Records += int64(p.Records)
	// Not finite: the batch's loss, or a sum that no text form could carry.
	if loss, weight := s.Loss+p.Loss, s.Weight+p.Weight; finite(loss) && finite(weight) {
		s.Loss, s.Weight = loss, weight
	}
}

// lose notes batches that nobody will send again.
func (l *Ledger) lose(s *Sums, batches int64) {
	if batches == 0 {
		return
	}
	l.counted += batches
	s.Lost += batches
	if !l.charged {
		l.charged = true
		l.counters.Losses++
	}
}

// Counted is the number of distinct batches that the ledger has seen, whatever
// became of them: applied, skipped, or lost for good. It is the shard's clock:
// each batch moves it once, however often it is sent, and a restore sets it
// back together with the weights.
func (l *Ledger) Counted() int64 { return l.counted }

// Progress tells how far the shard is with a chunk: whether it is finished, and
// which batch it wants next otherwise.
func (l *Ledger) Progress(pass int, rank int64) (finished bool, next int64) {
	if l.finished(pass, rank) {
		return true, 0
	}
	return false, l.flight[chunk{pass, rank}].next
}

func (l *Ledger) place(rank int64) (lane int, position int64) {
	return int(rank % l.lanes), rank / l.lanes
}

// known is the pass's entry, nil if it has none.
func (l *Ledger) known(n int) *pass {
	if n < l.through {
		return &l.past
	}
	return l.passes[n]
}

// pass is the pass's entry, made if it has none.
func (l *Ledger) pass(n int) *pass {
	p := l.known(n)
	if p == nil {
		p = &pass{lanes: make([]lane, l.lanes)}
		l.passes[n] = p
	}
	return p
}

func (l *Ledger) finished(passNumber int, rank int64) bool {
	p := l.known(passNumber)
	if p == nil {
		return false
	}
	i, at := l.place(rank)
	return p.finished(i, at)
}

func (p *pass) finished(lane int, position int64) bool {
	if p.collapsed {
		return p.lanes == nil || !p.lanes[lane].failed.Contains(position)
	}
	return p.lanes[lane].finished.Contains(position)
}

func (l *Ledger) reopened(c chunk) bool {
	p := l.known(c.pass)
	if p == nil || p.lanes == nil {
		return false
	}
	i, at := l.place(c.rank)
	return p.lanes[i].reopened.Contains(at)
}

func (l *Ledger) finish(passNumber int, rank int64) {
	p := l.pass(passNumber)
	if p.lanes == nil {
		return
	}
	i, at := l.place(rank)
	p.lanes[i].reopened.Remove(at)
	if p.collapsed {
		p.lanes[i].failed.Remove(at)
	} else {
		p.lanes[i].finished.Add(at)
	}
}

func validate(p *wire.Meta) error {
	switch {
	case p.Pass < 0 || p.Pass > MaxPass:
		return fmt.Errorf("%w: pass %d", ErrInvalid, p.Pass)
	case p.Rank < 0 || p.Rank > MaxRank:
		return fmt.Errorf("%w: rank %d", ErrInvalid, p.Rank)
	case p.N < 0 || p.N == math.MaxInt64:
		return fmt.Errorf("%w: batch number %d", ErrInvalid, p.N)
	case p.Token < 0:
		return fmt.Errorf("%w: token %d", ErrInvalid, p.Token)
	case p.Records < 0:
		return fmt.Errorf("%w: %d records", ErrInvalid, p.Records)
	case !finite(p.Weight) || p.Weight < 0:
		return fmt.Errorf("%w: a weight of %v", ErrInvalid, p.Weight)
	}
	return nil
}

func finite(x float64) bool { return x-x == 0 }
