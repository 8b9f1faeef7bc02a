package pserver

import (
	"context"
	"crypto/md5"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"starfish/checkpoint"
	"starfish/internal/clock"
	"starfish/internal/wire"
	"starfish/job"
)

// These measure saves of 1 GiB in four shards, as ratios within rounds:
//
//	go test -run - -bench Save -benchtime 9x ./pserver
//
// A round is an iteration; what is reported is the median. STARFISH_SAVED_MIB
// makes the shards smaller, for a busy machine.

const (
	savedShards = 4
	// pushKeys is the number of keys of a push to a shard.
	pushKeys = 3000
)

// savedBytes is the size of all shards together.
func savedBytes(b *testing.B) int {
	b.Helper()
	text := os.Getenv("STARFISH_SAVED_MIB")
	if text == "" {
		return 1 << 30
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err)
	return n << 20
}

var savedJob = uuid.MustParse("0b8f9a46-3f7e-4d0c-9a11-5a4f6f1f3b77")

// saved are shards with a gigabyte of one parameter with adagrad.
type saved struct {
	shards []*Shard
	// keys are those of each shard.
	keys [][]uint64
}

func newSaved(b *testing.B, p job.Parameter) *saved {
	b.Helper()
	p.Name, p.Optimizer, p.Divisor = "p", adagrad(), 1
	s := &saved{keys: make([][]uint64, savedShards)}
	if p.Sparse {
		perShard := savedBytes(b) / savedShards / (4 * (2 + 2*p.Dim))
		for k, full := uint64(0), 0; full < savedShards; k++ {
			at := job.ShardOf(k, savedShards)
			if s.keys[at] = append(s.keys[at], k); len(s.keys[at]) == perShard {
				full++
			}
		}
	}
	for i := range savedShards {
		shard, err := NewShard(job.Parameters{V: 1, Shards: savedShards, List: []job.Parameter{p}}, i, testLanes, ShardOptions{})
		require.NoError(b, err)
		batch := &batches{}
		grad := make([]float32, pushKeys*max(1, p.Dim))
		for keys := range slices.Chunk(s.keys[i], pushKeys) {
			mustPush(b, shard, batch.next(nil, rows(0, keys, grad[:len(keys)*p.Dim]...)))
		}
		s.shards = append(s.shards, shard)
	}
	return s
}

// save writes all shards to files, as many at a time as there are processors.
func (s *saved) save(ctx context.Context, dir string, cut func(*Shard) (*Cut, error)) ([]checkpoint.Meta, error) {
	metas := make([]checkpoint.Meta, len(s.shards))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, shard := range s.shards {
		g.Go(func() error {
			c, err := cut(shard)
			if err != nil {
				return err
			}
			defer c.Close()
			h := checkpoint.Header{JobUUID: savedJob.String(), Shard: i}
			f, err := checkpoint.Save(ctx, checkpoint.OS, dir, h, func(emit checkpoint.Emit) error { return c.WriteTo(emit) })
			metas[i] = checkpoint.Meta{UUID: f.UUID, Path: f.Path, MD5: f.MD5, Size: f.Size, Shard: i}
			return err
		})
	}
	return metas, g.Wait()
}

// restore loads all files into new shards.
func (s *saved) restore(ctx context.Context, dir string, metas []checkpoint.Meta) error {
	var g errgroup.Group
	for i, shard := range s.shards {
		g.Go(func() error {
			fresh, err := NewShard(shard.job, i, testLanes, ShardOptions{Blank: true})
			if err != nil {
				return err
			}
			_, _, err = checkpoint.Loader{Dir: dir, Job: savedJob}.Load(ctx, metas[i:i+1], fresh.NewLoader())
			return err
		})
	}
	return g.Wait()
}

// digestAll reads the files and takes their MD5, all at once.
func digestAll(dir string, metas []checkpoint.Meta) error {
	var g errgroup.Group
	for _, m := range metas {
		g.Go(func() error {
			f, err := os.Open(filepath.Join(dir, m.Path))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{md5.New()}, struct{ io.Reader }{f}, make([]byte, 1<<20))
			return err
		})
	}
	return g.Wait()
}

// plain is what dd with conv=fsync does: so many bytes into one file.
func plain(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for piece := make([]byte, 1<<20); size > 0; size -= int64(len(piece)) {
		if _, err := f.Write(piece[:min(size, 1<<20)]); err != nil {
			return err
		}
	}
	return f.Sync()
}

// took returns the wall time and the processor time of f, in seconds.
func took(b *testing.B, f func() error) (wall, cpu float64) {
	b.Helper()
	began, before := clock.System.Now(), cpuTime()
	require.NoError(b, f())
	return clock.System.Now().Sub(began).Seconds(), time.Duration(cpuTime() - before).Seconds()
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

func BenchmarkSaveAndRestore(b *testing.B) {
	for name, p := range map[string]job.Parameter{
		"rows of 1":  {Sparse: true, Dim: 1},
		"rows of 16": {Sparse: true, Dim: 16},
		"dense":      {Shape: []int{savedBytes(b) / 8}},
	} {
		b.Run(name, func(b *testing.B) {
			s, cut := newSaved(b, p), (*Shard).Cut
			s.keys = nil
			runtime.GC()
			var perGB, digest, again, reload, reloadCPU []float64
			for b.Loop() {
				dir := b.TempDir()
				var metas []checkpoint.Meta
				var size int64
				wall, cpu := took(b, func() (err error) {
					metas, err = s.save(b.Context(), dir, cut)
					return err
				})
				for _, m := range metas {
					size += m.Size
				}
				other, _ := took(b, func() error { return plain(filepath.Join(dir, "plain"), size) })
				require.NoError(b, os.Remove(filepath.Join(dir, "plain")))
				reading, least := took(b, func() error { return digestAll(dir, metas) })
				restoring, restored := took(b, func() error { return s.restore(b.Context(), dir, metas) })
				perGB, digest = append(perGB, cpu/float64(size)*1e9), append(digest, cpu/least)
				again, reload = append(again, other/wall), append(reload, reading/restoring)
				reloadCPU = append(reloadCPU, least/restored)
				for _, m := range metas {
					require.NoError(b, os.Remove(filepath.Join(dir, m.Path)))
				}
				runtime.GC()
			}
			b.ReportMetric(median(perGB), "cpu-s/GB")
			b.ReportMetric(median(digest), "cpu/read+md5")
			b.ReportMetric(median(again), "of-dd-fsync")
			b.ReportMetric(median(reload), "of-read+md5")
			b.ReportMetric(median(reloadCPU), "of-read+md5-cpu")
		})
	}
}

// stretch is how long a lock was held: by the clock, and by the processor time
// of the thread that held it, which other load on the machine does not stretch.
type stretch struct {
	thread int64
	wall   time.Time
	// lost counts how often the kernel gave the thread's processor to another.
	lost int64
}

// begin keeps the goroutine on its thread until end.
func begin() stretch {
	runtime.LockOSThread()
	return stretch{lost: processorsLost(), wall: clock.System.Now(), thread: threadTime()}
}

// end returns also whether the thread kept its processor all the time: if not,
// the wall time says something of the load on the machine only.
func (s stretch) end() (wall, cpu time.Duration, kept bool) {
	cpu, wall = time.Duration(threadTime()-s.thread), clock.System.Now().Sub(s.wall)
	kept = processorsLost() == s.lost
	runtime.UnlockOSThread()
	return wall, cpu, kept
}

func processorsLost() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return u.Nivcsw
}

func threadTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// holds are the times for which locks were held; kept are the wall times of
// those whose thread kept its processor.
type holds struct{ wall, kept, cpu []time.Duration }

func (h *holds) add(s stretch) {
	wall, cpu, kept := s.end()
	h.wall, h.cpu = append(h.wall, wall), append(h.cpu, cpu)
	if kept {
		h.kept = append(h.kept, wall)
	}
}

func (h *holds) join(other holds) {
	h.wall, h.kept, h.cpu = append(h.wall, other.wall...), append(h.kept, other.kept...), append(h.cpu, other.cpu...)
}

// timed is a lock that notes how long it is held.
type timed struct {
	sync.Locker
	now  stretch
	held *holds
}

func (l *timed) Lock() {
	l.Locker.Lock()
	l.now = begin()
}

func (l *timed) Unlock() {
	l.held.add(l.now)
	l.Locker.Unlock()
}

// pushes are the times of pushes, and how long of it they held the lock.
type pushes struct {
	whole []time.Duration
	held  holds
}

// trainAll pushes from as many goroutines as there are processors to all the
// shards, until the function that it returns is called.
func (s *saved) trainAll(round int64) (stop func() pushes) {
	var mu sync.Mutex
	var all pushes
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(i)))
			var mine pushes
			keys, grad := make([]uint64, pushKeys), make([]float32, pushKeys)
			for n := int64(0); ; n++ {
				select {
				case <-done:
					mu.Lock()
					defer mu.Unlock()
					all.whole = append(all.whole, mine.whole...)
					all.held.join(mine.held)
					return
				default:
				}
				at := rng.IntN(savedShards)
				for k := range keys {
					keys[k] = s.keys[at][rng.IntN(len(s.keys[at]))]
				}
				var locked stretch
				began := clock.System.Now()
				p := &wire.PushData{Meta: wire.Meta{Rank: round<<32 + n*64 + int64(i), Token: 1, Last: true}, Sparse: []wire.SparseRows{rows(0, keys, grad...)}}
				if _, err := s.shards[at].Push(uint64(i), p, func() bool { locked = begin(); return true }); err != nil {
					panic(err)
				}
				mine.held.add(locked)
				mine.whole = append(mine.whole, clock.System.Now().Sub(began))
				runtime.Gosched() // a server waits for the next message here
			}
		})
	}
	return func() pushes {
		close(done)
		wg.Wait()
		return all
	}
}

// quantile is in milliseconds.
func quantile(x []time.Duration, q float64) float64 {
	slices.Sort(x)
	return x[int(q*float64(len(x)-1))].Seconds() * 1e3
}

// How long a save holds a shard's lock, and what it does to pushes: all
// processors push keys at random into four tables of 256 MiB, with all of them
// being saved and with none.
func BenchmarkSaveUnderLoad(b *testing.B) {
	s := newSaved(b, job.Parameter{Sparse: true, Dim: 1})
	held := make([]holds, savedShards)
	cut := func(shard *Shard) (*Cut, error) {
		return shard.cut(&timed{Locker: &shard.mu, held: &held[shard.number]})
	}
	var whole, inside, longest []float64
	round := int64(0)
	for b.Loop() {
		dir := b.TempDir()
		round += 2
		stop := s.trainAll(round)
		var metas []checkpoint.Meta
		wall, _ := took(b, func() (err error) {
			metas, err = s.save(b.Context(), dir, cut)
			return err
		})
		with := stop()
		stop = s.trainAll(round + 1)
		require.NoError(b, clock.Sleep(b.Context(), clock.System, time.Duration(wall*float64(time.Second))))
		without := stop()
		whole = append(whole, quantile(with.whole, 0.99)/quantile(without.whole, 0.99))
		inside = append(inside, quantile(with.held.cpu, 0.99)/quantile(without.held.cpu, 0.99))
		longest = append(longest, quantile(with.held.cpu, 1))
		for _, m := range metas {
			require.NoError(b, os.Remove(filepath.Join(dir, m.Path)))
		}
	}
	var all holds
	for _, h := range held {
		all.join(h)
	}
	b.ReportMetric(quantile(all.wall, 1), "held-max-ms")
	b.ReportMetric(quantile(all.kept, 1), "held-max-kept-ms")
	b.ReportMetric(float64(len(all.kept))/float64(len(all.wall)), "held-kept-share")
	b.ReportMetric(quantile(all.cpu, 1), "held-max-cpu-ms")
	b.ReportMetric(quantile(all.cpu, 0.99), "held-p99-cpu-ms")
	b.ReportMetric(slices.Max(longest), "push-held-max-cpu-ms")
	b.ReportMetric(median(inside), "push-held-p99-cpu-ratio")
	b.ReportMetric(median(whole), "push-p99-ratio")
}
