package trainer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"starfish/checkpoint/memfs"
	"starfish/trainer"
)

// faults are all kinds.
var faults = map[string]func(p *plague){
	// Processes.
	"kill": func(p *plague) {
		proc := p.someone()
		p.killSome(proc)
		p.begin(proc.name)
	},
	"stop":       func(p *plague) { p.someone().cancel() }, // in order; the supervisor starts it again
	"double":     (*plague).double,
	"pause":      (*plague).pause,
	"clock jump": (*plague).jump,
	"zombie":     (*plague).zombie,
	"join":       func(p *plague) { p.join(p.role()) },
	"leave": func(p *plague) {
		proc := p.retired()
		p.line(proc.host, "leaves for good")
		proc.cancel()
	},
	"loss": func(p *plague) { p.killSome(p.retired()) },

	// The store.
	"expire all": func(p *plague) { p.store.ExpireAll() },
	"compact":    func(p *plague) { p.store.Compact(p.store.Revision()) },
	"flaky store": func(p *plague) {
		p.flaky(p.someone(), 0.05+0.5*p.r.Float64(), false, p.some(time.Second))
	},
	"hidden success": func(p *plague) {
		p.flaky(p.someone(), 0.05+0.5*p.r.Float64(), true, p.some(time.Second))
	},
	"late request": func(p *plague) {
		p.strays(p.someone(), 0.05+0.5*p.r.Float64(), errStray, p.some(time.Second))
	},
	"twice": func(p *plague) {
		p.strays(p.someone(), 0.2+0.8*p.r.Float64(), nil, p.some(2*time.Second))
	},
	"outage of the store": func(p *plague) { p.cutOff(p.some(3*p.spec.LeaseTTL), p.those("")...) },
	"partition":           func(p *plague) { p.cutOff(p.some(2*p.spec.LeaseTTL), p.someone()) },
	"late watch": func(p *plague) {
		proc := p.someone()
		proc.client.HoldWatches(true)
		p.after(p.some(2*p.spec.LeaseTTL), func() { proc.client.HoldWatches(false) })
	},
	"broken watch": func(p *plague) { p.someone().client.BreakWatches() },
	"lost watch": func(p *plague) {
		p.someone().client.LoseWatches()
		p.lasts(time.Minute) // until it lists again
	},

	// The network.
	"silence": func(p *plague) {
		proc := p.someone()
		d := p.some(2 * p.spec.LeaseTTL)
		p.net.Silence(proc.host, true)
		p.lasts(d)
		p.heal(d, proc)
	},
	"one-way silence": func(p *plague) {
		proc := p.someone()
		p.net.Mute(proc.host, true)
		p.after(p.some(2*p.spec.LeaseTTL), func() { p.net.Mute(proc.host, false) })
	},
	"pair":         func(p *plague) { p.part(true) },
	"one-way pair": func(p *plague) { p.part(false) },
	"delay": func(p *plague) {
		proc := p.someone()
		p.net.Delay(proc.host, p.some(2*time.Second))
		p.after(p.some(3*time.Second), func() { p.net.Delay(proc.host, p.latency/2) })
	},
	"cut": func(p *plague) { p.net.Cut(p.someone().host) },
	"repeat": func(p *plague) {
		proc := p.someone()
		p.after(p.some(2*time.Second), func() { p.net.Repeat(p.ctx, proc.host) })
	},
	"late bytes": func(p *plague) {
		proc := p.someone()
		p.net.Cut(proc.host)
		p.after(p.some(2*time.Second), func() { p.net.Repeat(p.ctx, proc.host) })
	},

	// The disk.
	"bad disk": func(p *plague) { p.badDisk(0.3*p.r.Float64(), p.some(2*time.Second)) },
	"full disk": func(p *plague) {
		p.disk.refuseCheckpoints(true)
		p.after(p.some(3*time.Second), func() { p.disk.refuseCheckpoints(false) })
	},
	"power cut": func(p *plague) { p.blackout(memfs.Keep(p.r.IntN(3))) },
}

// role is pserver or trainer.
func (p *plague) role() string { return []string{"pserver", "trainer"}[p.r.IntN(2)] }

// most is how many of a role there are at a time.
const most = 4

// join starts a process under a name that has not been, unless there are many.
func (p *plague) join(role string) {
	if len(p.those(role)) >= most {
		return
	}
	for i := 3; ; i++ {
		if name := fmt.Sprintf("%s-%d", role, i); p.running[name] == nil && !p.gone[name] {
			p.begin(name)
			return
		}
	}
}

// retired is a random process that the supervisor will not start again. One of its
// role is left.
func (p *plague) retired() *process {
	role := p.role()
	if len(p.those(role)) < 2 {
		p.join(role)
	}
	all := p.those(role)
	proc := all[p.r.IntN(len(all)-1)] // the last one may have come this moment
	p.gone[proc.name] = true
	return proc
}

// pause stops a process wherever it waits, in half of the cases for longer than
// its lease lives.
func (p *plague) pause() {
	proc, d := p.someone(), p.some(2*p.spec.LeaseTTL)
	p.line(proc.host, "stands still for %v", d)
	p.freeze(proc, true)
	p.after(d, func() {
		p.line(proc.host, "goes on")
		p.freeze(proc, false)
	})
}

// jump sets a process's clock forward by up to an hour, or back by up to a lease.
func (p *plague) jump() {
	proc, by := p.someone(), p.some(time.Hour)
	if p.r.IntN(2) == 0 {
		by = -p.some(p.spec.LeaseTTL)
		p.lasts(-by) // what is due is due so much later
	}
	p.line(proc.host, "its clock jumps by %v", by)
	proc.clock.jump(by)
}

// zombie makes a pserver outlive its lease: it is cut off from the store for longer
// than that lives, its clock stands still, and in half of the cases no trainer
// hears meanwhile who owns its shards now.
func (p *plague) zombie() {
	all := p.those("pserver")
	proc, d := all[p.r.IntN(len(all))], p.spec.LeaseTTL+p.some(p.spec.LeaseTTL)
	p.line(proc.host, "is a zombie for %v", d)
	proc.clock.jump(-d)
	p.cutOff(d, proc)
	var held []*process
	if p.r.IntN(2) == 0 {
		held = p.those("trainer")
	}
	for _, t := range held {
		t.client.HoldWatches(true)
	}
	p.after(d, func() {
		proc.clock.jump(d)
		for _, t := range held {
			t.client.HoldWatches(false)
		}
	})
}

// part cuts a pserver and another process off from each other, or one way.
func (p *plague) part(both bool) {
	pservers := p.those("pserver")
	if len(pservers) == 0 {
		return
	}
	a, b := pservers[p.r.IntN(len(pservers))], p.someone()
	if p.r.IntN(2) == 0 {
		a, b = b, a
	}
	p.line(a.host, "is cut off from %s, both ways: %v", b.host, both)
	change := func(on bool) {
		p.net.Part(a.host, b.host, on)
		if both {
			p.net.Part(b.host, a.host, on)
		}
	}
	change(true)
	p.after(p.some(2*p.spec.LeaseTTL), func() { change(false) })
}

// flaky makes a process's requests fail for a while, before or after they have
// had their effect.
func (p *plague) flaky(proc *process, rate float64, after bool, d time.Duration) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(p.r.Uint64(), 1))
	until := time.Now().Add(d)
	p.lasts(d)
	hook := func(op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Now().Before(until) && r.Float64() < rate {
			return errInjected
		}
		return nil
	}
	if after {
		proc.client.FailAfter(hook)
		return
	}
	proc.intercept(hook)
}

// strays makes transactions of a process arrive up to a second later: a second
// time, or for the only time if the process is told of an error instead.
func (p *plague) strays(proc *process, rate float64, told error, d time.Duration) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(p.r.Uint64(), 1))
	until := time.Now().Add(d)
	p.lasts(d + time.Second)
	proc.client.Stray(func(arrive func()) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Now().After(until) || r.Float64() >= rate {
			return nil
		}
		time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), arrive)
		return told
	})
}

// cutOff parts processes from the store.
func (p *plague) cutOff(d time.Duration, all ...*process) {
	for _, proc := range all {
		proc.client.Partition(true)
	}
	p.lasts(d)
	p.heal(d, all...)
}

func (p *plague) badDisk(rate float64, d time.Duration) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(p.r.Uint64(), 2))
	until := time.Now().Add(d)
	p.lasts(d)
	p.disk.now().SetHook(func(op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		// Reads are left alone: one that goes on failing is a lost state.
		if op != "read" && op != "open" && op != "size" && op != "list" && time.Now().Before(until) && r.Float64() < rate {
			return errInjected
		}
		return nil
	})
}

// blackout takes the power from the machine that all pservers are on.
func (p *plague) blackout(keep memfs.Keep) {
	all := p.those("pserver")
	for _, proc := range all {
		p.killSome(proc)
	}
	p.disk.powerCut(keep)
	for _, proc := range all {
		p.begin(proc.name)
	}
}

// double starts a trainer under a name that is in use: it takes the name over,
// or is refused.
func (p *plague) double() {
	all := p.those("trainer")
	name := all[p.r.IntN(len(all))].name
	takeover := p.r.IntN(2) == 0
	p.doubled[name] = true
	p.begin(name, func(c *trainer.Config) { c.Takeover = takeover })
}

var errStray = fmt.Errorf("the request is late: %w", context.DeadlineExceeded)
