package trainer_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
	"starfish/etcdqueue"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// disk is a file system that survives a power cut of the machine it is in: what
// was not durable is gone, and who had files open writes to nowhere.
type disk struct {
	mu sync.Mutex
	fs *memfs.FS
}

func (d *disk) now() *memfs.FS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fs
}

func (d *disk) powerCut(keep memfs.Keep) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fs = d.fs.Crash(keep)
}

// refuseCheckpoints is a disk that is full, or no more.
func (d *disk) refuseCheckpoints(on bool) {
	if !on {
		d.now().SetHook(nil)
		return
	}
	d.now().SetHook(func(op, name string) error {
		if op == "write" && strings.Contains(name, ".ckpt") {
			return errInjected
		}
		return nil
	})
}

func (d *disk) MkdirAll(dir string) error                     { return d.now().MkdirAll(dir) }
func (d *disk) Create(name string) (checkpoint.Writer, error) { return d.now().Create(name) }
func (d *disk) Open(name string) (io.ReadCloser, error)       { return d.now().Open(name) }
func (d *disk) Size(name string) (int64, error)               { return d.now().Size(name) }
func (d *disk) Rename(from, to string) error                  { return d.now().Rename(from, to) }
func (d *disk) RenameNew(from, to string) error               { return d.now().RenameNew(from, to) }
func (d *disk) Remove(name string) error                      { return d.now().Remove(name) }
func (d *disk) SyncDir(dir string) error                      { return d.now().SyncDir(dir) }
func (d *disk) List(dir string) ([]string, error)             { return d.now().List(dir) }

var errInjected = errors.New("injected")

// plague is a job under a supervisor that starts everything that has died
// again, and a schedule of faults of every kind.
type plague struct {
	*cluster
	r       *rand.Rand
	running map[string]*process
	alive   map[*process]bool
	// doubled are the names that two processes have wanted: the one that does
	// not get it ends with the exit code for that.
	doubled map[string]bool
	// expected names the processes that may end with an error.
	expected map[*process]bool
	ends     chan plagueEnd
	struck   map[string]int
	// line notes an event in a timeline.
	line func(who, text string, args ...any)
}

type plagueEnd struct {
	p   *process
	err error
}

var plagueNames = []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1", "trainer-2", "pserver-2"}

func newPlague(c *cluster, r *rand.Rand) *plague {
	p := &plague{cluster: c, r: r, running: map[string]*process{}, expected: map[*process]bool{},
		alive: map[*process]bool{}, doubled: map[string]bool{},
		ends: make(chan plagueEnd, 1000), struck: map[string]int{}, line: func(string, string, ...any) {}}
	c.started = func(proc *process, err error) { p.ends <- plagueEnd{proc, err} }
	for _, name := range plagueNames[:5] { // the last one comes with the first fault
		p.begin(name)
	}
	return p
}

func (p *plague) begin(name string, change ...func(*trainer.Config)) {
	if strings.HasPrefix(name, "pserver") {
		p.running[name] = p.pserver(name)
	} else {
		p.running[name] = p.trainer(name, change...)
	}
	p.alive[p.running[name]] = true
	p.line(p.running[name].host, "started")
}

// reap takes note of processes that have ended.
func (p *plague) reap() {
	for {
		select {
		case e := <-p.ends:
			p.reaped(e)
		default:
			return
		}
	}
}

func (p *plague) reaped(e plagueEnd) {
	p.n--
	code := job.ExitCode(e.err)
	p.line(e.p.host, "ended: exit %d, %v", code, e.err)
	refused := p.doubled[e.p.name] && (code == int(job.ExitUsage) || code == int(job.ExitSuperseded))
	if e.err != nil && !p.expected[e.p] && !refused {
		p.t.Errorf("%s ended: exit %d, %v", e.p.name, code, e.err)
	}
	delete(p.alive, e.p)
	if p.running[e.p.name] != e.p {
		return
	}
	delete(p.running, e.p.name)
	for other := range p.alive {
		if other.name == e.p.name && !p.expected[other] {
			p.running[e.p.name] = other
		}
	}
}

// someone is a random running process.
func (p *plague) someone() *process {
	for {
		if proc := p.running[plagueNames[p.r.IntN(len(plagueNames))]]; proc != nil {
			return proc
		}
	}
}

func (p *plague) killSome(proc *process) {
	p.expected[proc] = true
	p.line(proc.host, "killed")
	p.kill(proc)
	p.begin(proc.name)
}

// strike does one fault. What it draws comes from the fault's own seed, so that a
// plan without some of its faults is otherwise the same.
func (p *plague) strike(f fault) {
	p.r = rand.New(rand.NewPCG(f.seed, 6))
	faults[f.kind](p)
}

// fault is one entry of a plan: when, counted from the first take, and what.
type fault struct {
	number int
	at     time.Duration
	kind   string
	seed   uint64
}

// plan draws n faults with pauses of up to pause between them.
func plan(r *rand.Rand, n int, pause time.Duration) []fault {
	kinds := slices.Sorted(maps.Keys(faults))
	var at time.Duration
	list := make([]fault, n)
	for i := range list {
		at += time.Duration(r.Int64N(int64(pause)))
		list[i] = fault{i, at, kinds[r.IntN(len(kinds))], r.Uint64()}
	}
	return list
}

// some time up to most.
func (p *plague) some(most time.Duration) time.Duration {
	return time.Duration(p.r.Int64N(int64(most)))
}

// faults are all kinds.
var faults = map[string]func(p *plague){
	"kill":       func(p *plague) { p.killSome(p.someone()) },
	"expire all": func(p *plague) { p.store.ExpireAll() },
	"compact":    func(p *plague) { p.store.Compact(p.store.Revision()) },
	"flaky store": func(p *plague) {
		p.flaky(p.someone(), 0.05+0.5*p.r.Float64(), false, p.some(time.Second))
	},
	"hidden success": func(p *plague) {
		p.flaky(p.someone(), 0.05+0.5*p.r.Float64(), true, p.some(time.Second))
	},
	"outage of the store": func(p *plague) { p.outage(p.some(3 * p.spec.LeaseTTL)) },
	"partition": func(p *plague) {
		proc := p.someone()
		proc.client.Partition(true)
		p.heal(p.some(2*p.spec.LeaseTTL), proc)
	},
	"late watch": func(p *plague) {
		proc := p.someone()
		proc.client.HoldWatches(true)
		time.AfterFunc(p.some(2*p.spec.LeaseTTL), func() { proc.client.HoldWatches(false) })
	},
	"silence": func(p *plague) {
		proc := p.someone()
		p.net.Silence(proc.host, true)
		p.heal(p.some(2*p.spec.LeaseTTL), proc)
	},
	"one-way silence": func(p *plague) {
		proc := p.someone()
		p.net.Mute(proc.host, true)
		time.AfterFunc(p.some(2*p.spec.LeaseTTL), func() { p.net.Mute(proc.host, false) })
	},
	"delay": func(p *plague) {
		proc := p.someone()
		p.net.Delay(proc.host, p.some(2*time.Second))
		time.AfterFunc(p.some(3*time.Second), func() { p.net.Delay(proc.host, p.latency/2) })
	},
	"cut":      func(p *plague) { p.net.Cut(p.someone().host) },
	"bad disk": func(p *plague) { p.badDisk(0.3*p.r.Float64(), p.some(2*time.Second)) },
	"full disk": func(p *plague) {
		p.disk.refuseCheckpoints(true)
		time.AfterFunc(p.some(3*time.Second), func() { p.disk.refuseCheckpoints(false) })
	},
	"power cut": func(p *plague) { p.blackout(memfs.Keep(p.r.IntN(3))) },
	"stop":      func(p *plague) { p.someone().cancel() }, // in order; the supervisor starts it again
	"double":    (*plague).double,
}

// flaky makes a process's requests fail for a while, before or after they have
// had their effect.
func (p *plague) flaky(proc *process, rate float64, after bool, d time.Duration) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(p.r.Uint64(), 1))
	until := time.Now().Add(d)
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

// outage cuts everybody off from the store.
func (p *plague) outage(d time.Duration) {
	var cut []*process
	for _, proc := range p.running {
		cut = append(cut, proc)
		proc.client.Partition(true)
	}
	p.heal(d, cut...)
}

func (p *plague) badDisk(rate float64, d time.Duration) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(p.r.Uint64(), 2))
	until := time.Now().Add(d)
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
	var names []string
	for _, name := range []string{"pserver-0", "pserver-1", "pserver-2"} {
		if proc := p.running[name]; proc != nil {
			p.expected[proc] = true
			p.kill(proc)
			names = append(names, name)
		}
	}
	p.disk.powerCut(keep)
	for _, name := range names {
		p.begin(name)
	}
}

// double starts a trainer under a name that is in use: it takes the name over,
// or is refused.
func (p *plague) double() {
	name := plagueNames[2+p.r.IntN(3)]
	takeover := p.r.IntN(2) == 0
	p.doubled[name] = true
	p.begin(name, func(c *trainer.Config) { c.Takeover = takeover })
}

// run lets the faults of a plan strike, starts what has died again, and returns
// when the job is complete and every process has ended.
func (p *plague) run(plan []fault) {
	p.untilTaken()
	began := time.Now()
	for _, f := range plan {
		time.Sleep(f.at - time.Since(began))
		p.reap()
		for _, name := range plagueNames {
			if p.running[name] == nil {
				p.begin(name)
			}
		}
		if p.state().Phase.Ended() {
			break
		}
		p.line("FAULT", "%d: %s", f.number, f.kind)
		p.strike(f)
		p.struck[f.kind]++
	}
	limit := time.After(30 * time.Minute)
	for p.n > 0 {
		select {
		case e := <-p.ends:
			p.reaped(e)
		case <-time.After(time.Second):
			for _, name := range plagueNames { // the supervisor
				if p.running[name] == nil && !p.state().Phase.Ended() {
					p.begin(name)
				}
			}
		case <-limit:
			p.t.Fatalf("%d processes have not ended; the store holds:\n%s", p.n, p.dump())
		}
	}
}

// Everything that can happen happens, at random moments, until the job is
// complete.
func TestPlagueLosesNothing(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 3))
				c := newCluster(t, file, "")
				c.spec.Checkpoint.Interval = time.Duration(1+r.IntN(4)) * time.Second
				c.spec.Train.Passes = 2 + r.IntN(3)
				pause := 20 * time.Millisecond
				if r.IntN(2) == 0 { // slowly, so that faults meet every phase of the job
					c.latency, pause = 40*time.Millisecond, 3*time.Second
					c.models = map[string]trainer.Builder{model.Count: newPulled}
					c.spec.Data.Test = c.spec.Data.Train
					c.spec.Data.Chunk = 3000
				}
				if r.IntN(2) == 0 { // chunks go to others although their trainers live
					c.spec.Queue.StallTimeout = time.Duration(1+r.IntN(3)) * time.Second
				}
				p := newPlague(c, r)
				began := time.Now()
				p.run(plan(r, 25, pause))
				require.Equal(t, etcdqueue.PhaseComplete, c.state().Phase)
				c.exact(2000, seen)
				t.Logf("%v in %v", p.struck, time.Since(began))
			})
		})
	}
}

// The store answers with errors while the processes start, now and then after
// it has done what was asked. They wait for better times.
func TestStartOnAFlakyStore(t *testing.T) {
	file, seen := records(t, 300)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &plague{cluster: newCluster(t, file, ""), r: rand.New(rand.NewPCG(seed, 4))}
				p.prepare = func(proc *process) { p.flaky(proc, 0.5, p.r.IntN(2) == 0, 10*time.Second) }
				for _, name := range []string{"pserver-0", "pserver-1"} {
					p.pserver(name)
				}
				for _, name := range []string{"trainer-0", "trainer-1"} {
					p.trainer(name)
				}
				p.wait()
				p.exact(300, seen)
			})
		})
	}
}

// A chunk is bad, and everything happens: it ends up Failed in every pass, and
// of the others nothing is lost.
func TestPlagueWithABadChunk(t *testing.T) {
	good, seen := records(t, 2000)
	text, err := os.ReadFile(good)
	require.NoError(t, err)
	const bad = "nonsense\n"
	file := filepath.Join(t.TempDir(), "bad.libsvm")
	require.NoError(t, os.WriteFile(file, append([]byte(bad), text...), 0o600))
	// The records of the first chunk, whose first line is the bad one: no batch
	// of it is ever complete.
	const chunk = 300
	left := 2000
	for at, line := len(bad), 0; at < chunk; line++ {
		end := bytes.IndexByte(text[at-len(bad):], '\n')
		for _, field := range strings.Fields(string(text[at-len(bad):][:end]))[1:] {
			key, err := strconv.ParseUint(strings.TrimSuffix(field, ":1"), 10, 64)
			require.NoError(t, err)
			if seen[key]--; seen[key] == 0 {
				delete(seen, key)
			}
		}
		at += end + 1
		left--
	}
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "")
				c.spec.Checkpoint.Interval = time.Second
				c.spec.Train.Passes = 3
				c.spec.Data.Chunk = chunk
				p := newPlague(c, rand.New(rand.NewPCG(seed, 5)))
				p.run(plan(p.r, 15, 40*time.Millisecond))
				seen := maps.Clone(seen)
				c.exact(left, seen)
				require.EqualValues(t, 3, c.result().Queue.Failed)
			})
		})
	}
}
