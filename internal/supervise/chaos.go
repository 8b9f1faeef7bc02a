package supervise

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"starfish/internal/clock"
)

// Chaos says how often a child of each kind is killed.
type Chaos map[string]time.Duration

// ParseChaos reads "pserver=5s,trainer=3s"; kinds lists what may be named.
func ParseChaos(text string, kinds ...string) (Chaos, error) {
	c := Chaos{}
	for _, part := range strings.Split(text, ",") {
		kind, every, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not KIND=DURATION", part)
		}
		if !slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("%q is none of %s", kind, strings.Join(kinds, ", "))
		}
		if _, twice := c[kind]; twice {
			return nil, fmt.Errorf("%s is named twice", kind)
		}
		d, err := time.ParseDuration(every)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%s=%s: not a positive duration such as 5s", kind, every)
		}
		c[kind] = d
	}
	return c, nil
}

func (c Chaos) kinds() []string {
	kinds := make([]string, 0, len(c))
	for k := range c {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	return kinds
}

// Window is the time in which a Killer may strike.
type Window interface {
	// Opened is closed when the window opens.
	Opened() <-chan struct{}
	// Open asks whether it is open now.
	Open(ctx context.Context) bool
}

// Killer kills random children.
type Killer struct {
	chaos Chaos
	seed  uint64
	sup   *Supervisor
	win   Window
	clk   clock.Clock
	log   logrus.FieldLogger

	mu    sync.Mutex
	kills map[string]int
}

// NewKiller makes the killer of a supervisor's children.
func NewKiller(s *Supervisor, chaos Chaos, seed uint64, win Window) *Killer {
	return &Killer{chaos: chaos, seed: seed, sup: s, win: win, clk: s.cfg.Clock, log: s.cfg.Log, kills: map[string]int{}}
}

// Run kills until ctx ends or the window closes.
func (k *Killer) Run(ctx context.Context) error {
	select {
	case <-k.win.Opened():
	case <-ctx.Done():
		return nil
	}
	var g errgroup.Group
	for _, kind := range k.chaos.kinds() {
		g.Go(func() error {
			k.hunt(ctx, kind)
			return nil
		})
	}
	return g.Wait()
}

// hunt kills children of one kind.
func (k *Killer) hunt(ctx context.Context, kind string) {
	h := fnv.New64a()
	h.Write([]byte(kind))
	rng := rand.New(rand.NewPCG(k.seed, h.Sum64()))
	for {
		wait, pick := draw(rng, k.chaos[kind])
		if clock.Sleep(ctx, k.clk, wait) != nil || !k.win.Open(ctx) {
			return
		}
		c := k.sup.strike(kind, pick)
		if c == nil {
			continue
		}
		<-c.done
		if exitOf(c.cmd.ProcessState).Signal == "" || !k.win.Open(ctx) {
			continue // it had ended by itself, or the window has closed: no kill that counts
		}
		k.mu.Lock()
		k.kills[kind]++
		k.mu.Unlock()
		k.log.WithFields(logrus.Fields{"process": c.Name}).Info("killed a process")
	}
}

// draw draws the time to the next kill, half to one and a half of every, and
// which child it hits, as a fraction of those alive.
func draw(rng *rand.Rand, every time.Duration) (time.Duration, float64) {
	return time.Duration((0.5 + rng.Float64()) * float64(every)), rng.Float64()
}

// Kills counts the kills that struck while the window was open, by kind.
func (k *Killer) Kills() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	kills := map[string]int{}
	for kind := range k.chaos {
		kills[kind] = k.kills[kind]
	}
	return kills
}

// strike kills one child of a kind that is alive and not yet struck; nil if
// there is none.
func (s *Supervisor) strike(kind string, pick float64) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	var prey []*child
	for _, c := range s.running {
		if c.Kind == kind && !c.struck {
			prey = append(prey, c)
		}
	}
	if len(prey) == 0 {
		return nil
	}
	sort.Slice(prey, func(i, j int) bool { return prey[i].Name < prey[j].Name })
	c := prey[int(pick*float64(len(prey)))]
	c.struck = true
	if c.cmd.Process.Signal(syscall.SIGKILL) != nil {
		return nil
	}
	return c
}
