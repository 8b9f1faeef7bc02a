package main

import (
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
	Join      Action = "start"               // one process more
	Leave     Action = "SIGTERM, no restart" // one process less
	Burst     Action = "start some, then SIGTERM, no restart"
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
	// Provoke: the point is on the way of a shard that changes its owner. So a
	// pserver is killed to get there; if the kind is Moving, one joins or is
	// terminated.
	Provoke bool
	// Moving: processes come and go, or a shard is handed over. These kinds have
	// a deck of their own.
	Moving bool
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
		{Name: "a trainer joins", Action: Join, Roles: []string{trainers}},
		{Name: "a pserver joins", Action: Join, Roles: []string{pservers}},
		{Name: "a trainer leaves", Action: Leave, Roles: []string{trainers}},
		{Name: "a pserver leaves", Action: Leave, Roles: []string{pservers}, Needs: 2},
		{Name: "trainers come and go", Action: Burst, Roles: []string{trainers}},
		{Name: "pservers come and go", Action: Burst, Roles: []string{pservers}},
		point(pservers, failpoint.BeforeHandOver),
		point(pservers, failpoint.AfterHandOver),
		point(pservers, failpoint.AfterReceipt),
	}
	for i := range kinds {
		k := &kinds[i]
		k.Needs = max(k.Needs, 1)
		switch k.Point {
		case failpoint.BetweenPushes:
			k.Needs = 2
		case failpoint.AfterClaim, failpoint.BeforeReopen:
			k.Provoke = true
		case failpoint.BeforeHandOver, failpoint.AfterHandOver, failpoint.AfterReceipt:
			k.Provoke, k.Moving, k.Needs, k.Limit = true, true, 2, time.Second
		case failpoint.BeforeCreate, failpoint.AfterCreate:
			k.Window = Creating
		case failpoint.Draining, failpoint.Finishing:
			k.Window = Draining
		}
		if k.Window == "" {
			k.Window = Training
		}
		switch k.Action {
		case Join, Leave, Burst:
			k.Moving = true
		}
	}
	return kinds
}

// Where a burst of one role goes: so many processes more, or up to so many, and
// down again to so many.
const (
	burstPservers, calmPservers = 3, 2
	burstTrainers, calmTrainers = 20, 3
)

func named(name string) Kind {
	for _, k := range Kinds() {
		if k.Name == name {
			return k
		}
	}
	panic("campaign: no kind is named " + name)
}
