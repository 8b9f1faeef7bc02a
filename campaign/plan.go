package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"starfish/internal/failpoint"
	"starfish/job"
	"starfish/trainer/model"
)

// Shape is a job and the processes that it runs on.
type Shape struct {
	Model    string `json:"model"`
	Mode     string `json:"mode"`
	Pservers int    `json:"pservers"`
	Trainers int    `json:"trainers"`
	Shards   int    `json:"shards"`
	Lanes    int    `json:"lanes"`
	Records  int    `json:"records"`
	Keys     int    `json:"keys"` // that the records draw from
	Chunk    int    `json:"chunk_bytes"`
	Batch    int    `json:"batch"`
	Passes   int    `json:"passes"`
	Take     int    `json:"take"`
	Window   int    `json:"window"`
	// Staleness is the bound on it, 0 without one.
	Staleness int  `json:"staleness,omitempty"`
	Shuffle   bool `json:"shuffle"`
	// Interval is that of the checkpoints.
	Interval time.Duration `json:"interval"`
	// Created by the trainers instead of by `starfish run`.
	ByTrainers bool `json:"created_by_trainers"`
}

// Fault is one fault of a plan.
type Fault struct {
	Kind  Kind          `json:"-"`
	Name  string        `json:"name"`
	Pause time.Duration `json:"pause"` // before it
	// Pick chooses among the processes of a role, as a fraction of them.
	Pick float64 `json:"pick"`
	// For is how long a process is stopped beyond the life of its lease, or
	// lingers at a point.
	For time.Duration `json:"for"`
	// Over: the process stays stopped over the next fault, if that one can
	// strike without it.
	Over bool `json:"over,omitempty"`
	// ByJoin: what leads to a hand-over is that a pserver joins, not that one is
	// terminated.
	ByJoin bool `json:"by_join,omitempty"`
}

// Plan is what a seed means.
type Plan struct {
	Seed   uint64  `json:"seed"`
	Shape  Shape   `json:"shape"`
	Faults []Fault `json:"faults"`
}

// perPlan is how many faults of training a plan has, without those of the kinds
// that are Moving.
const perPlan = 4

// everythingTimes is how often the plan of seed 0 kills everything.
const everythingTimes = 10

// NewPlan is the plan of a seed. The kinds are dealt like cards: as many seeds
// in a row as it takes deal each kind once before any comes again. Seed 0 kills
// everything, etcd included, ten times over.
//
// What was added after the others (the kinds that are Moving, mode and keys) is drawn
// from a second source, so that a seed has the other faults, in the same order,
// and the shape that it had before, but for pservers and shards that it did not
// need then.
func NewPlan(seed uint64) Plan {
	rng, later := rand.New(rand.NewPCG(seed, 0xfa017)), rand.New(rand.NewPCG(seed, 0xc0ea60))
	p := Plan{Seed: seed}
	if seed == 0 {
		for range everythingTimes {
			p.Faults = append(p.Faults, newFault(rng, named("kill everything")))
		}
	} else {
		for _, d := range []deck{{Window: Creating}, {Window: Training}, {Window: Draining}} {
			for _, k := range d.deal(seed - 1) {
				p.Faults = append(p.Faults, newFault(rng, k))
			}
		}
	}
	p.Shape = newShape(rng, p.Faults)
	if seed > 0 {
		for _, k := range (deck{Window: Training, Moving: true}).deal(seed - 1) {
			p.insert(later, newFault(later, k))
		}
	}
	// Only before the first one has lost its shards there are two pservers to
	// push to for certain.
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.place(), b.place()) })
	p.Shape.fit(p.Faults)
	p.Shape.Keys = []int{400, 400, 20000}[later.IntN(3)]
	p.Shape.Mode = job.ModeAsync
	asked, bound := p.Shape, 1+later.IntN(4)
	switch later.IntN(4) {
	case 0: // values are always fresh then
		asked.Mode, asked.Window = "sync", 0
	case 1:
		asked.Staleness = bound
	}
	if asked.accepted() {
		p.Shape = asked
	}
	return p
}

// accepted tells whether the programs train such a job.
func (s Shape) accepted() bool {
	_, err := job.ParseSpec([]byte(specText(Plan{Shape: s})), ".", nil, job.Models(model.Names()...))
	return err == nil
}

// insert puts a fault somewhere among those that strike in training.
func (p *Plan) insert(rng *rand.Rand, f Fault) {
	first := slices.IndexFunc(p.Faults, func(f Fault) bool { return f.Kind.Window == Training })
	n := 0
	for _, f := range p.Faults {
		if f.Kind.Window == Training {
			n++
		}
	}
	p.Faults = slices.Insert(p.Faults, first+rng.IntN(n+1), f)
}

// place orders the faults of a plan; those of one place keep their order.
func (f Fault) place() int {
	if f.Kind.Point == failpoint.BetweenPushes {
		return 0
	}
	return 1
}

// deck is the kinds of one window, those that are Moving apart.
type deck struct {
	Window Window
	Moving bool
}

// hand is which cards of the deck, dealt again and again, the n-th plan gets:
// perPlan of training; three in two plans of the kinds that are Moving; of the few
// that strike while the job is created or drains, one in two plans.
func (d deck) hand(n uint64) (from, to uint64) {
	switch {
	case d.Moving:
		return n * 3 / 2, (n + 1) * 3 / 2
	case d.Window == Training:
		return n * perPlan, (n + 1) * perPlan
	case (n+uint64(len(d.Window)))%2 == 0:
		return 0, 0
	}
	return n / 2, n/2 + 1
}

// deal is the hand of the n-th plan.
func (d deck) deal(n uint64) []Kind {
	var kinds []Kind
	for _, k := range Kinds() {
		if k.Window == d.Window && k.Moving == d.Moving {
			kinds = append(kinds, k)
		}
	}
	var cards []Kind
	from, to := d.hand(n)
	for i := from; i < to; i++ {
		round := i / uint64(len(kinds))
		shuffled := rand.New(rand.NewPCG(round, 0xdeca)).Perm(len(kinds))
		cards = append(cards, kinds[shuffled[i%uint64(len(kinds))]])
	}
	return cards
}

func newFault(rng *rand.Rand, k Kind) Fault {
	f := Fault{Kind: k, Name: k.Name, Pick: rng.Float64(), Pause: time.Duration(50+rng.IntN(700)) * time.Millisecond}
	switch {
	case k.Action == Stop:
		f.For = time.Duration(300+rng.IntN(1200)) * time.Millisecond
		f.Over = rng.IntN(3) > 0
	case k.Point == failpoint.BetweenPushes:
		f.For = 20 * time.Millisecond // for the first push to arrive
	case k.Provoke && k.Moving:
		f.ByJoin = rng.IntN(2) == 0
	}
	return f
}

func newShape(rng *rand.Rand, faults []Fault) Shape {
	s := Shape{
		Model: "count", Pservers: 1 + rng.IntN(4), Trainers: 1 + rng.IntN(6), Shards: 1 + rng.IntN(8),
		Lanes: []int{1, 4, 16, 64}[rng.IntN(4)], Batch: []int{7, 64, 1000}[rng.IntN(3)], Take: []int{1, 1, 3}[rng.IntN(3)],
		Window: rng.IntN(2), Shuffle: rng.IntN(4) > 0, Interval: []time.Duration{time.Second, 3 * time.Second}[rng.IntN(2)],
		ByTrainers: rng.IntN(3) == 0,
	}
	if rng.IntN(3) == 0 {
		s.Model = "logistic"
	}
	if rng.IntN(3) == 0 { // a few large chunks
		s.Records, s.Chunk, s.Passes = 4000, 1<<16, 40
	} else {
		s.Records, s.Chunk, s.Passes = 1500, 256<<rng.IntN(3), 12
	}
	s.fit(faults)
	return s
}

// maxShards is how many shards a job has at most.
const maxShards = 8

// fit makes a shape fit its faults: there are pservers enough for each of them,
// and, where pservers join, shards to be handed over.
func (s *Shape) fit(faults []Fault) {
	joins := 0
	for _, f := range faults {
		s.Pservers = max(s.Pservers, f.Kind.Needs)
		switch {
		case f.Kind.Action == Burst && f.Kind.Roles[0] == pservers:
			joins += burstPservers
		case f.Kind.Action == Join && f.Kind.Roles[0] == pservers, f.ByJoin:
			joins++
		}
	}
	s.Shards = max(s.Shards, min(s.Pservers+joins, maxShards))
}

// over tells whether a fault lasts over the next one: that one must be able to
// strike, and to be measured, while the process stands still.
func (s Shape) over(f, next Fault) bool {
	if !f.Over || len(next.Kind.Roles) == 0 {
		return false
	}
	// Two processes are out of action then, and a third has to go on.
	left := s.Trainers - 1
	if f.Kind.Roles[0] == pservers {
		left = s.Pservers - 2
	}
	switch next.Kind.Action {
	case Kill, Join:
		return true
	case KillHeld, Point:
		return left > 0 && !next.Kind.Moving
	}
	return false // a process that stands still does not end in order
}
