package trainer_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
)

// plague is a job under a supervisor that starts everything that has died
// again, and a schedule of faults of every kind.
type plague struct {
	*cluster
	r       *rand.Rand
	names   []string // of all processes that have been, in the order in which they came
	gone    map[string]bool
	running map[string]*process
	alive   map[*process]bool
	// doubled are the names that two processes have wanted: the one that does
	// not get it ends with the exit code for that.
	doubled map[string]bool
	// expected names the processes that may end with an error.
	expected map[*process]bool
	ends     chan plagueEnd
	struck   map[string]int
	// over is when the last effect of a fault that has struck ends.
	over time.Time
	// served, if not nil, is told of each pserver.
	served func(*pserver.Server)
	// watchdog, if not nil, tells what is wrong with the job, at any time.
	watchdog func() error
	// line notes an event in a timeline.
	line func(who, text string, args ...any)
}

type plagueEnd struct {
	p   *process
	err error
}

func newPlague(c *cluster, r *rand.Rand) *plague {
	p := &plague{cluster: c, r: r, running: map[string]*process{}, expected: map[*process]bool{},
		alive: map[*process]bool{}, doubled: map[string]bool{}, gone: map[string]bool{}, over: time.Now(),
		ends: make(chan plagueEnd, 1000), struck: map[string]int{}, line: func(string, string, ...any) {}}
	c.started = func(proc *process, err error) { p.ends <- plagueEnd{proc, err} }
	return p
}

// starters begin a job; a third pserver comes with the first fault.
var starters = []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1", "trainer-2", "pserver-2"}

func (p *plague) begin(name string, change ...func(*trainer.Config)) {
	if !slices.Contains(p.names, name) {
		p.names = append(p.names, name)
	}
	if strings.HasPrefix(name, "pserver") {
		p.running[name] = p.pserver(name)
		if p.served != nil {
			p.served(p.running[name].server)
		}
	} else {
		p.running[name] = p.trainer(name, change...)
	}
	p.alive[p.running[name]] = true
	p.line(p.running[name].host, "started")
}

// supervise starts again what has ended, unless it has left for good.
func (p *plague) supervise() {
	for _, name := range p.names {
		if p.running[name] == nil && !p.gone[name] {
			p.begin(name)
		}
	}
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

// those are the running processes of a role, "" of both, in the order of their names.
func (p *plague) those(role string) []*process {
	var all []*process
	for _, name := range p.names {
		if proc := p.running[name]; proc != nil && strings.HasPrefix(name, role) {
			all = append(all, proc)
		}
	}
	return all
}

// someone is a random running process.
func (p *plague) someone() *process {
	all := p.those("")
	return all[p.r.IntN(len(all))]
}

func (p *plague) killSome(proc *process) {
	p.expected[proc] = true
	p.line(proc.host, "killed")
	p.kill(proc)
}

// strike does one fault. What it draws comes from the fault's own seed, so that a
// plan without some of its faults is otherwise the same.
func (p *plague) strike(f fault) {
	p.r = rand.New(rand.NewPCG(f.seed, 6))
	p.lasts(0)
	faults[f.kind](p)
}

// lasts notes that what a fault does goes on for d.
func (p *plague) lasts(d time.Duration) {
	if end := time.Now().Add(d); end.After(p.over) {
		p.over = end
	}
}

// after ends what a fault does.
func (p *plague) after(d time.Duration, end func()) {
	p.lasts(d)
	time.AfterFunc(d, end)
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

// patience is how long a job may take after the last fault is over: a lost watch is
// made up for within a minute, a take that nobody knows of within the stall
// timeout, and both may come after the other.
const patience = 5 * time.Minute

// run lets the faults of a plan strike, starts what has died again, and returns
// when the job is complete and every process has ended.
func (p *plague) run(plan []fault) {
	for _, name := range starters[:len(starters)-1] {
		p.begin(name)
	}
	p.untilTaken()
	p.names = append(p.names, starters[len(starters)-1])
	began := time.Now()
	for _, f := range plan {
		time.Sleep(f.at - time.Since(began))
		p.reap()
		p.supervise()
		p.look()
		if p.state().Phase.Ended() {
			break
		}
		p.line("FAULT", "%d: %s", f.number, f.kind)
		p.strike(f)
		p.struck[f.kind]++
	}
	for p.n > 0 {
		select {
		case e := <-p.ends:
			p.reaped(e)
		case <-time.After(time.Second):
			if !p.state().Phase.Ended() {
				p.supervise()
			}
			p.look()
		}
		if time.Since(p.over) > patience {
			p.stop("%v after the last fault was over these have not ended: %s; the store holds:\n%s", patience, p.living(), p.dump())
		}
	}
	p.look()
}

// living names the processes that have not ended.
func (p *plague) living() string {
	var hosts []string
	for proc := range p.alive {
		hosts = append(hosts, proc.host)
	}
	slices.Sort(hosts)
	return strings.Join(hosts, " ")
}

// look stops a job with which something is wrong.
func (p *plague) look() {
	if p.watchdog == nil {
		return
	}
	if err := p.watchdog(); err != nil {
		p.stop("%v", err)
	}
}

// stop fails the test and ends everything.
func (p *plague) stop(format string, args ...any) {
	p.t.Errorf(format, args...)
	for proc := range p.alive {
		p.killSome(proc)
	}
	for limit := time.After(patience); p.n > 0; {
		select {
		case e := <-p.ends:
			p.reaped(e)
		case <-limit:
			p.t.Fatalf("%d killed processes do not end", p.n)
		}
	}
	p.t.FailNow()
}
