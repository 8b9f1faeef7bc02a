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

// Everything that can happen happens, at random moments, until the job is
// complete.
func TestPlagueLosesNothing(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "")
				began := time.Now()
				p := c.plagued(seed)
				require.Equal(t, etcdqueue.PhaseComplete, c.state().Phase)
				c.exact(2000, seen)
				t.Logf("%v in %v", p.struck, time.Since(began))
			})
		})
	}
}

// plagued runs a job under the plague of a seed.
func (c *cluster) plagued(seed uint64) *plague {
	r := rand.New(rand.NewPCG(seed, 3))
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
	p.run(plan(r, 25, pause))
	return p
}

// The store answers with errors while the processes start, now and then after
// it has done what was asked. They wait for better times.
func TestStartOnAFlakyStore(t *testing.T) {
	file, seen := records(t, 300)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlague(newCluster(t, file, ""), rand.New(rand.NewPCG(seed, 4)))
				p.started = nil
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
