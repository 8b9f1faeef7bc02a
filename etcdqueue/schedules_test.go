package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// TestScheduleTranscripts plays the scripts in testdata/schedules: orders of
// events that an earlier form of the protocol did not survive. Each step is
// done by an actor with a handle of its own; below it stand what it was told
// and the records that have changed. "A x | B y" lets B do y between A's last
// read and A's write, and so on with several. "A x !" hides from A every answer to what it writes in x.
func TestScheduleTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/schedules/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			s := &script{t: t, actors: make(map[string]*actor), last: make(map[string]string)}
			playTranscript(t, file, s.step)
		})
	}
}

type script struct {
	t      *testing.T
	w      *world
	actors map[string]*actor
	last   map[string]string
}

type actor struct {
	*Queue
	tasks []Task

	mu     sync.Mutex // the follower's requests pass the hooks as well
	during func()
	hide   bool
	news   chan struct{} // not nil while nothing is heard of what changes; closed then
}

// slow is a store whose watches tell an actor nothing new while others are busy
// between its last read and its write. What it would make of the news is
// another schedule, and which of them comes about a matter of luck.
type slow struct {
	store.Store
	a *actor
}

func (s slow) Watch(ctx context.Context, start, end string, rev int64) <-chan store.WatchResponse {
	out := make(chan store.WatchResponse)
	go func() {
		defer close(out)
		for r := range s.Store.Watch(ctx, start, end, rev) {
			s.a.mu.Lock()
			news := s.a.news
			s.a.mu.Unlock()
			if news != nil {
				<-news
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// deafen makes the actor hear nothing of changes until the end is called.
func (a *actor) deafen() (end func()) {
	news := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.news = news
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.news = nil
		close(news)
	}
}

// set says what happens before the actor's next write, and whether answers are
// hidden from it.
func (a *actor) set(during func(), hide bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.during, a.hide = during, hide
}

func (a *actor) before(op, _ string) error {
	if op != "put" {
		return nil
	}
	a.mu.Lock()
	during := a.during
	a.during = nil
	a.mu.Unlock()
	if during != nil {
		during()
	}
	return nil
}

func (a *actor) after(string, string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hide {
		return errLost
	}
	return nil
}

func (s *script) step(words []string) string {
	if words[0] == "queue" {
		n, c := int64(0), Config{}
		for _, word := range words[1:] {
			name, text, _ := strings.Cut(word, "=")
			v, err := strconv.Atoi(text)
			require.NoError(s.t, err)
			switch name {
			case "chunks":
				n = int64(v)
			case "lanes":
				c.Lanes = v
			case "passes":
				c.Passes = v
			case "failures":
				c.MaxFailures = v
			}
		}
		s.w = setup(s.t, n, c)
		return s.changes()
	}
	var notes []string
	steps := strings.Split(strings.Join(words, " "), " | ")
	words = strings.Fields(steps[0])
	var during func()
	if len(steps) > 1 {
		during = func() {
			for _, step := range steps[1:] {
				notes = append(notes, step+": "+s.do(strings.Fields(step)))
			}
		}
	}
	hide := words[len(words)-1] == "!"
	if hide {
		words = words[:len(words)-1]
	}
	a := s.actor(words[0])
	if words[1] == "take" {
		s.caughtUp(a)
	}
	if during != nil {
		defer a.deafen()()
	}
	a.set(during, hide)
	notes = append(notes, s.do(words))
	a.set(nil, false)
	return strings.TrimSuffix(strings.Join(notes, "\n")+"\n"+s.changes(), "\n")
}

func (s *script) actor(name string) *actor {
	if s.actors[name] == nil {
		q, client := s.w.client(name)
		a := &actor{Queue: q}
		q.c.Store = slow{q.c.Store, a}
		client.Fail(a.before)
		client.FailAfter(a.after)
		s.actors[name] = a
	}
	return s.actors[name]
}

// do is one step of an actor.
func (s *script) do(words []string) string {
	ctx := s.t.Context()
	a := s.actor(words[0])
	arg := func(i int) int {
		v, err := strconv.Atoi(words[i])
		require.NoError(s.t, err)
		return v
	}
	var err error
	told := ""
	switch words[1] {
	case "take":
		if a.tasks, err = a.Take(ctx, arg(2)); err == nil {
			for _, t := range a.tasks {
				told += fmt.Sprintf("pass %d rank %d token %d; ", t.Pass, t.Rank, t.Token)
			}
		}
	case "complete":
		err = a.Complete(ctx, finished(a.tasks...))
	case "fail":
		err = a.Fail(ctx, a.tasks[0], "bad", nil)
		a.tasks = a.tasks[1:]
	case "readmit":
		var pass int
		pass, err = a.Readmit(ctx, []int64{int64(arg(2))})
		told = fmt.Sprintf("pass %d", pass)
	case "requeue":
		var n int
		n, err = a.Requeue(ctx, registry(words[2:]...))
		told = fmt.Sprintf("%d chunks", n)
	case "reopen":
		var at ranges.Set
		at, err = ranges.Parse(words[4])
		require.NoError(s.t, err)
		var n int64
		n, err = a.Reopen(ctx, arg(2), arg(3), at, func() []store.Cmp { return []store.Cmp{store.Absent("owners")} })
		told = fmt.Sprintf("%d chunks", n)
	case "turn":
		_, err = a.Turn(ctx, nil)
	case "remove":
		err = a.RemovePasses(ctx, arg(2))
	case "lanes":
		var lanes []Lane
		lanes, _, _, err = a.Lanes(ctx, arg(2))
		for i, l := range lanes {
			told += fmt.Sprintf("lane %d: %s; ", i, show(l))
		}
	case "finish":
		err = a.Finish(ctx, Phase(words[2]), "", nil)
	default:
		require.Fail(s.t, "unknown step "+words[1])
	}
	switch {
	case errors.Is(err, errLost):
		return "no answer"
	case err != nil:
		return "error: " + err.Error()
	case told == "":
		return "ok"
	}
	return strings.TrimSuffix(told, "; ")
}

// caughtUp waits until the actor has seen the present state and lanes.
func (s *script) caughtUp(a *actor) {
	require.NoError(s.t, a.start(context.Background()))
	want := s.w.state()
	eventually(s.t, func() bool {
		a.Queue.mu.Lock()
		defer a.Queue.mu.Unlock()
		if a.view.state.Revision != want.Revision || len(a.view.missing()) > 0 {
			return false
		}
		for key, value := range s.w.store.Dump() {
			id, ok := parseLaneKey(strings.TrimPrefix(key, prefix))
			if p := a.view.passes[id.pass]; ok && p != nil && string(p.lanes[id.lane].lane.Encode()) != value {
				return false
			}
			c, ok := parseFailedKey(strings.TrimPrefix(key, prefix))
			if _, seen := a.view.failed[c]; ok && !seen {
				return false
			}
		}
		return true
	})
}

// changes shows the records that are not as they were at the last step.
func (s *script) changes() string {
	now := s.w.store.Dump()
	keys := make(map[string]bool)
	for key := range now {
		keys[key] = true
	}
	for key := range s.last {
		keys[key] = true
	}
	var lines []string
	for key := range keys {
		name := strings.TrimPrefix(key, prefix)
		value, exists := now[key]
		switch {
		case value == s.last[key]:
		case !exists:
			lines = append(lines, name+" is removed")
		case strings.HasPrefix(name, queuePrefix):
			var l Lane
			require.NoError(s.t, decode(store.KV{Value: []byte(value)}, laneVersion, &l, &l.V))
			lines = append(lines, name+": "+show(l))
		case name == stateKey:
			var st State
			require.NoError(s.t, decode(store.KV{Value: []byte(value)}, stateVersion, &st, &st.V))
			lines = append(lines, fmt.Sprintf("state: %s pass %d floor %d reopened %v", st.Phase, st.Pass, st.Floor, st.Reopened))
		default:
			lines = append(lines, name+": "+value)
		}
	}
	s.last = now
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
