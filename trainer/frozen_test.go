package trainer_test

import (
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/internal/clock"
)

// processClock is the clock of one process. It may jump, and its timers stand still
// while the process is frozen: those that are due by then fire when it goes on.
// Its zero value is right.
type processClock struct {
	mu     sync.Mutex
	off    time.Duration
	thawed chan struct{} // not nil while frozen; closed when it goes on
	due    []*processTimer
}

func (c *processClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.off)
}

// jump sets the clock forward, or back. Its timers do not notice.
func (c *processClock) jump(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += by
}

func (c *processClock) Timer(d time.Duration) clock.Timer {
	t := &processTimer{of: c, c: make(chan time.Time, 1)}
	t.timer = time.AfterFunc(max(d, 1), t.fire)
	return t
}

func (c *processClock) freeze(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on && c.thawed == nil:
		c.thawed = make(chan struct{})
	case !on && c.thawed != nil:
		close(c.thawed)
		c.thawed = nil
		for _, t := range c.due {
			t.c <- time.Now().Add(c.off)
		}
		c.due = nil
	}
}

// await returns when the process is not frozen.
func (c *processClock) await() {
	for {
		c.mu.Lock()
		thawed := c.thawed
		c.mu.Unlock()
		if thawed == nil {
			return
		}
		<-thawed
	}
}

type processTimer struct {
	of    *processClock
	c     chan time.Time
	timer *time.Timer
}

func (t *processTimer) fire() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.of.thawed != nil {
		t.of.due = append(t.of.due, t)
		return
	}
	t.c <- time.Now().Add(t.of.off) // has room: it fires once
}

func (t *processTimer) C() <-chan time.Time { return t.c }

func (t *processTimer) Stop() bool {
	if t.timer.Stop() {
		return true
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	i := slices.Index(t.of.due, t)
	if i >= 0 {
		t.of.due = slices.Delete(t.of.due, i, i+1)
	}
	return i >= 0
}

// processDisk is the disk as one process has it: a frozen process does nothing
// with it, and a dead one neither. Each operation takes its time.
type processDisk struct {
	checkpoint.FS
	p       *process
	latency time.Duration
}

// ready waits until the process is not frozen, and for the disk.
func (d processDisk) ready() error {
	if d.latency > 0 {
		time.Sleep(d.latency)
	}
	d.p.clock.await()
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.dead {
		return errKilled
	}
	return nil
}

// through does one thing with the disk.
func through[T any](d processDisk, do func() (T, error)) (none T, err error) {
	if err := d.ready(); err != nil {
		return none, err
	}
	return do()
}

func (d processDisk) do(f func() error) error {
	if err := d.ready(); err != nil {
		return err
	}
	return f()
}

func (d processDisk) MkdirAll(dir string) error {
	return d.do(func() error { return d.FS.MkdirAll(dir) })
}

func (d processDisk) Create(name string) (checkpoint.Writer, error) {
	return through(d, func() (checkpoint.Writer, error) {
		w, err := d.FS.Create(name)
		if err != nil {
			return nil, err
		}
		return processFile{w, d}, nil
	})
}

func (d processDisk) Open(name string) (io.ReadCloser, error) {
	return through(d, func() (io.ReadCloser, error) { return d.FS.Open(name) })
}

func (d processDisk) Size(name string) (int64, error) {
	return through(d, func() (int64, error) { return d.FS.Size(name) })
}

func (d processDisk) Rename(from, to string) error {
	return d.do(func() error { return d.FS.Rename(from, to) })
}

func (d processDisk) RenameNew(from, to string) error {
	return d.do(func() error { return d.FS.RenameNew(from, to) })
}

func (d processDisk) Remove(name string) error {
	return d.do(func() error { return d.FS.Remove(name) })
}

func (d processDisk) SyncDir(dir string) error {
	return d.do(func() error { return d.FS.SyncDir(dir) })
}

func (d processDisk) List(dir string) ([]string, error) {
	return through(d, func() ([]string, error) { return d.FS.List(dir) })
}

type processFile struct {
	checkpoint.Writer
	d processDisk
}

func (f processFile) Write(b []byte) (int, error) {
	return through(f.d, func() (int, error) { return f.Writer.Write(b) })
}

func (f processFile) Sync() error { return f.d.do(f.Writer.Sync) }

// freeze stops a process, as SIGSTOP does, or lets it go on: wherever it waits it
// waits on, for timers, answers, changes and packets, and what it is about to ask
// or to write leaves afterwards.
func (c *cluster) freeze(p *process, on bool) {
	p.clock.freeze(on)
	p.client.Freeze(on)
	c.net.Freeze(p.host, on)
}

// A timer of a frozen process fires when it goes on, also one that was stopped
// too late; a jump moves what the clock says and no timer.
func TestProcessClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &processClock{}
		began := c.Now()
		first, second, third := c.Timer(time.Second), c.Timer(2*time.Second), c.Timer(time.Minute)
		c.freeze(true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Empty(t, first.C())
		require.True(t, second.Stop())
		c.jump(time.Hour)
		c.freeze(false)
		require.Equal(t, time.Hour+3*time.Second, (<-first.C()).Sub(began))
		require.Empty(t, second.C())
		require.False(t, first.Stop())
		require.Equal(t, time.Hour+time.Minute, (<-third.C()).Sub(began))
	})
}
