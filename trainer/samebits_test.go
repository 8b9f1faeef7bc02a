package trainer_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

// script gives the chunks of a job with one lane to trainers: a take waits until
// the next chunk of the pass is its trainer's.
type script struct {
	c      *cluster
	chunks int64
	of     func(position int64) string // name of the trainer
	begin  chan struct{}               // nothing is taken before it is closed
}

// scripted is the store as a trainer under a script has it.
type scripted struct {
	store.Store
	script *script
	name   string
}

// follow puts a trainer under the script.
func (s *script) follow(cfg *trainer.Config) {
	cfg.Store, cfg.Take = scripted{cfg.Store, s, cfg.Name}, 1
}

// Txn makes a take wait for its turn.
func (s scripted) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	for _, op := range t.Then {
		if op.Kind != store.KindPut || !strings.HasPrefix(op.Key, "queue/") {
			continue
		}
		after := s.lane(store.KV{Key: op.Key, Value: op.Value, ModRev: 1})
		for s.has(after) > s.has(s.now(op.Key)) && !s.turn(op.Key) {
			time.Sleep(time.Millisecond)
			if ctx.Err() != nil {
				return store.Result{}, context.Cause(ctx)
			}
		}
	}
	return s.Store.Txn(ctx, t)
}

func (s scripted) lane(kv store.KV) etcdqueue.Lane {
	l, err := etcdqueue.DecodeLane(kv, s.script.chunks)
	require.NoError(s.script.c.t, err)
	return l
}

func (s scripted) now(key string) etcdqueue.Lane {
	kv, err := store.Lookup(s.script.c.ctx, s.script.c.store, s.script.c.prefix()+key)
	require.NoError(s.script.c.t, err)
	return s.lane(kv)
}

// has is how many chunks of a lane lie with trainers of this name.
func (s scripted) has(l etcdqueue.Lane) (n int64) {
	for _, e := range l.Pending {
		if e.Owner == s.name {
			n += e.At.Len()
		}
	}
	return n
}

func (s scripted) turn(key string) bool {
	select {
	case <-s.script.begin:
	default:
		return false
	}
	next, some := s.now(key).Todo.Min()
	return !some || s.script.of(next) == s.name
}

// gradients writes files of records whose gradients are of very different sizes,
// so that their sum depends on the order in which it is made.
func gradients(t *testing.T, files, each int) string {
	t.Helper()
	dir, r := t.TempDir(), rand.New(rand.NewPCG(7, 7))
	for f := range files {
		var b strings.Builder
		for range each {
			fmt.Fprintf(&b, "%d", r.IntN(2))
			for key := range 5 {
				fmt.Fprintf(&b, " %d:%.6g", key*4+r.IntN(4), math.Pow(10, 2*r.NormFloat64()-1))
			}
			b.WriteByte('\n')
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.libsvm", f)), []byte(b.String()), 0o600))
	}
	return dir
}

// Same members, seed and chunks: two runs give the same model to the bit, whoever
// is quicker; also if a trainer dies between two steps, or while its batch waits
// at every shard and all of them have let it go before the last trainer arrives,
// and one of its name goes on at once.
func TestSyncSameBits(t *testing.T) {
	const trainers, files, each = 3, 9, 40
	dir := gradients(t, files, each)
	var want map[string]string
	for name, test := range map[string]struct {
		kill string
		slow []time.Duration // of the trainers
	}{
		"as quick as each other":  {slow: []time.Duration{20, 20, 20}},
		"the first is the last":   {slow: []time.Duration{60, 30, 10}},
		"the last is the last":    {slow: []time.Duration{5, 35, 75}},
		"killed between steps":    {kill: "between", slow: []time.Duration{20, 30, 40}},
		"killed with its batches": {kill: "arrived", slow: []time.Duration{20, 10, 300}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, dir, ""))
				c.spec.Model.Type, c.models = model.Logistic, map[string]trainer.Builder{model.Logistic: newPulled}
				c.spec.Data.Chunk, c.spec.Queue.Lanes, c.spec.Queue.Speculate = job.WholeFile, 1, 0
				s := &script{c: c, chunks: files, begin: make(chan struct{}),
					of: func(position int64) string { return fmt.Sprintf("trainer-%d", position%trainers) }}
				servers := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
				var all []*process
				for i := range trainers {
					p := c.trainer(fmt.Sprintf("trainer-%d", i), s.follow)
					c.net.Delay(p.host, test.slow[i]*time.Millisecond)
					all = append(all, p)
				}
				time.Sleep(time.Second) // all of them are seen by all
				close(s.begin)
				if test.kill != "" {
					c.strikeAtAStep(servers, test.kill)
					c.kill(all[1])
					c.trainer("trainer-1", s.follow)
				}
				c.wait()
				require.EqualValues(t, files*each*c.spec.Train.Passes, c.result().Records)
				require.Equal(t, int64(0), c.result().Queue.Speculated)
				got := c.export()
				require.Len(t, got, 21)
				if want == nil {
					want = got
				}
				require.Equal(t, want, got)
			})
		})
	}
}

// strikeAtAStep waits for a moment in the middle of the first pass: between two
// steps no shard has a batch; or all of them have that of trainer-1 and wait for
// trainer-2 alone.
func (c *cluster) strikeAtAStep(servers []*process, when string) {
	c.soon("a moment "+when, func() bool {
		all := slices.Concat(barriers(servers[0]), barriers(servers[1]))
		return len(all) == c.spec.Shards && !slices.ContainsFunc(all, func(b pserver.BarrierStatus) bool {
			if b.Step != all[0].Step || b.Step < 3 {
				return true
			}
			if when == "between" {
				return b.Batches > 0
			}
			return !slices.Equal(b.Missing, []string{"trainer-2"})
		})
	})
}
