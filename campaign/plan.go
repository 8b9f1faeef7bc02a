package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"starfish/internal/failpoint"
)

// Window is when a fault of a kind has to strike to count.
type Window string

// The windows.
const (
	Creating Window = "creating" // before the first take
	Training Window = "training" // between first take and last complete
	Draining Window = "draining" // after it, before the job is complete
)

// The roles of the processes.
const (
	pservers = "pserver"
	trainers = "trainer"
)

// Action is what a fault does.
type Action string

// The actions.
const (
	Kill      Action = "SIGKILL"
	KillHeld  Action = "SIGKILL, no restart" // until others have taken over
	Stop      Action = "SIGSTOP"             // for longer than the lease lives, then SIGCONT
	Terminate Action = "SIGTERM"
	Point     Action = "SIGKILL at a point"
)

// Kind is a kind of fault.
type Kind struct {
	Name   string
	Action Action
	// Roles are those of the processes that are hit, one of each; none: all
	// processes, the one with etcd included.
	Roles []string
	Point failpoint.Point
	// Needs is how many pservers it takes.
	Needs  int
	Window Window
	// Provoke: the point is on the way of a shard that changes its owner, so a
	// pserver is killed to get there.
	Provoke bool
	// Limit is how long the shards of a killed pserver may be away, 0 if that is
	// not measured. A successor of the same name begins at once; others have to
	// wait for the end of the lease.
	Limit time.Duration
}

// Kinds lists all kinds of fault.
func Kinds() []Kind {
	point := func(role string, p failpoint.Point) Kind {
		return Kind{Name: string(p), Action: Point, Roles: []string{role}, Point: p, Needs: 1, Window: Training}
	}
	kinds := []Kind{
		{Name: "kill a trainer", Action: Kill, Roles: []string{trainers}},
		{Name: "kill a pserver", Action: Kill, Roles: []string{pservers}, Limit: time.Second},
		{Name: "kill a pserver for good", Action: KillHeld, Roles: []string{pservers}, Needs: 2, Limit: leaseTTL + time.Second},
		{Name: "kill a trainer and a pserver", Action: Kill, Roles: []string{trainers, pservers}, Limit: time.Second},
		{Name: "kill everything", Action: Kill},
		{Name: "stop and continue a trainer", Action: Stop, Roles: []string{trainers}},
		{Name: "stop and continue a pserver", Action: Stop, Roles: []string{pservers}},
		{Name: "terminate a trainer", Action: Terminate, Roles: []string{trainers}},
		{Name: "terminate a pserver", Action: Terminate, Roles: []string{pservers}},
		{Name: "terminate everything", Action: Terminate},
		point(trainers, failpoint.AfterTake),
		point(trainers, failpoint.BetweenPushes),
		point(trainers, failpoint.BeforeComplete),
		point(trainers, failpoint.AfterComplete),
		point(trainers, failpoint.BeforeTurn),
		point(trainers, failpoint.AfterTurn),
		point(pservers, failpoint.SaveBegun),
		point(pservers, failpoint.SaveWritten),
		point(pservers, failpoint.SaveRenamed),
		point(pservers, failpoint.SaveSynced),
		point(pservers, failpoint.SaveListed),
		point(pservers, failpoint.AfterClaim),
		point(pservers, failpoint.BeforeReopen),
		point("", failpoint.BeforeCreate),
		point("", failpoint.AfterCreate),
		point(pservers, failpoint.Draining),
		point(trainers, failpoint.Finishing),
	}
	for i := range kinds {
		k := &kinds[i]
		k.Needs = max(k.Needs, 1)
		switch k.Point {
		case failpoint.BetweenPushes:
			k.Needs = 2
		case failpoint.AfterClaim, failpoint.BeforeReopen:
			k.Provoke = true
		case failpoint.BeforeCreate, failpoint.AfterCreate:
			k.Window = Creating
		case failpoint.Draining, failpoint.Finishing:
			k.Window = Draining
		}
		if k.Window == "" {
			k.Window = Training
		}
	}
	return kinds
}

// Shape is a job and the processes that it runs on.
type Shape struct {
	Model    string `json:"model"`
	Pservers int    `json:"pservers"`
	Trainers int    `json:"trainers"`
	Shards   int    `json:"shards"`
	Lanes    int    `json:"lanes"`
	Records  int    `json:"records"`
	Chunk    int    `json:"chunk_bytes"`
	Batch    int    `json:"batch"`
	Passes   int    `json:"passes"`
	Take     int    `json:"take"`
	Window   int    `json:"window"`
	Shuffle  bool   `json:"shuffle"`
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
}

// Plan is what a seed means.
type Plan struct {
	Seed   uint64  `json:"seed"`
	Shape  Shape   `json:"shape"`
	Faults []Fault `json:"faults"`
}

// perPlan is how many faults of training a plan has.
const perPlan = 4

// everythingTimes is how often the plan of seed 0 kills everything.
const everythingTimes = 10

// NewPlan is the plan of a seed. The kinds are dealt like cards: as many seeds
// in a row as it takes deal each kind once before any comes again. Seed 0 kills
// everything, etcd included, ten times over.
func NewPlan(seed uint64) Plan {
	rng := rand.New(rand.NewPCG(seed, 0xfa017))
	p := Plan{Seed: seed}
	if seed == 0 {
		for range everythingTimes {
			p.Faults = append(p.Faults, newFault(rng, named("kill everything")))
		}
	} else {
		for _, w := range []Window{Creating, Training, Draining} {
			for _, k := range deal(seed-1, w) {
				p.Faults = append(p.Faults, newFault(rng, k))
			}
		}
	}
	// Only before the first one has lost its shards there are two pservers to
	// push to for certain.
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.place(), b.place()) })
	p.Shape = newShape(rng, p.Faults)
	return p
}

// place orders the faults of a plan; those of one place keep their order.
func (f Fault) place() int {
	if f.Kind.Point == failpoint.BetweenPushes {
		return 0
	}
	return 1
}

func named(name string) Kind {
	for _, k := range Kinds() {
		if k.Name == name {
			return k
		}
	}
	panic("campaign: no kind is named " + name)
}

// deal is the hand of the n-th plan: perPlan kinds that strike in training; of
// the few that strike while the job is created or drains, one in two plans.
func deal(n uint64, w Window) []Kind {
	var deck []Kind
	for _, k := range Kinds() {
		if k.Window == w {
			deck = append(deck, k)
		}
	}
	hand := uint64(perPlan)
	if w != Training {
		if hand = 1; (n+uint64(len(w)))%2 == 0 {
			return nil
		}
		n /= 2
	}
	var cards []Kind
	for i := n * hand; i < (n+1)*hand; i++ {
		round := i / uint64(len(deck))
		shuffled := rand.New(rand.NewPCG(round, 0xdeca)).Perm(len(deck))
		cards = append(cards, deck[shuffled[i%uint64(len(deck))]])
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
	for _, f := range faults {
		s.Pservers = max(s.Pservers, f.Kind.Needs)
	}
	s.Shards = max(s.Shards, s.Pservers)
	return s
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
	case Kill:
		return true
	case KillHeld, Point:
		return left > 0
	}
	return false // a process that stands still does not end in order
}
