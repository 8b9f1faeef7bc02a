package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/campaign/history"
	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/client"
)

// look is how often something is looked at that nothing tells.
const look = 5 * time.Millisecond

// observer sees the job in etcd, as long as one `starfish run` lives.
type observer struct {
	st    store.Store // the job's part
	job   job.Job
	queue *etcdqueue.Queue
	close func()
	// endpoints of the run's etcd.
	endpoints []string
}

// observe reaches the etcd of a run by the file in which the run says where it
// is, and waits for the job. before is that file as an earlier run has left it.
func observe(ctx context.Context, file string, before os.FileInfo) (*observer, error) {
	var place struct{ Endpoints []string }
	for {
		now, err := os.Stat(file)
		if err == nil && (before == nil || !os.SameFile(before, now)) {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &place); err != nil {
				return nil, err
			}
			break
		}
		if err := clock.Sleep(ctx, clock.System, look); err != nil {
			return nil, err
		}
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	conn := cli.Etcd{Endpoints: place.Endpoints, Timeout: cli.DefaultEtcdTimeout}
	st, closeStore, err := conn.Connect(ctx, quiet)
	if err != nil {
		return nil, err
	}
	o := &observer{st: store.Prefixed(st, job.Prefix(jobName)), close: closeStore, endpoints: place.Endpoints}
	if o.job, err = job.Wait(ctx, o.st); err == nil {
		spec := o.job.Spec
		o.queue, err = etcdqueue.New(etcdqueue.Config{Store: o.st, Clock: clock.System, Lanes: spec.Queue.Lanes,
			Shuffle: spec.Train.Shuffle, Seed: spec.Train.Seed, Passes: spec.Train.Passes,
			MaxFailures: spec.Queue.MaxFailures, StallTimeout: spec.Queue.StallTimeout})
	}
	if err != nil {
		closeStore()
		return nil, err
	}
	o.close = sync.OnceFunc(func() {
		o.queue.Close()
		closeStore()
	})
	return o, nil
}

// window is where the job is now; empty when it has ended.
func (o *observer) window(ctx context.Context) (Window, error) {
	state, err := o.queue.State(ctx)
	switch {
	case errors.Is(err, etcdqueue.ErrNoQueue):
		return Creating, nil
	case err != nil:
		return "", err
	case state.Phase.Ended():
		return "", nil
	case state.Phase == etcdqueue.PhaseDraining:
		return Draining, nil
	}
	taken, left := state.Pass > 0, state.Pass+1 < o.job.Spec.Train.Passes
	for _, pass := range state.Takeable() {
		lanes, _, _, err := o.queue.Lanes(ctx, pass)
		if err != nil {
			return "", err
		}
		for _, l := range lanes {
			taken = taken || l.Takes > 0
			left = left || !l.Finished()
		}
	}
	switch {
	case !taken:
		return Creating, nil
	case left:
		return Training, nil
	}
	return Draining, nil
}

// chunks is the number of chunks of a pass.
func (o *observer) chunks(ctx context.Context) (int64, error) {
	for {
		state, err := o.queue.State(ctx)
		if err != nil {
			return 0, err
		}
		m, err := o.queue.Manifest(ctx, state.Pass)
		if !errors.Is(err, etcdqueue.ErrNoPass) {
			return m.Chunks, err
		}
	}
}

// watch shows every change to a history, and what came of it to l, from revision
// *next on, until ctx ends, etcd does, or a change is not as it should be.
func (o *observer) watch(ctx context.Context, h *history.History, l *load, next *int64) error {
	for {
		for r := range o.st.Watch(ctx, "", "\x00", *next) {
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // nobody looks any more
			case errors.Is(r.Err, store.ErrCompacted):
				return fmt.Errorf("the history was not seen whole: %w", r.Err)
			}
			for len(r.Events) > 0 {
				n := 1
				for n < len(r.Events) && r.Events[n].KV.ModRev == r.Events[0].KV.ModRev {
					n++
				}
				rev := r.Events[0].KV.ModRev
				if err := h.See(r.Events[:n]); err != nil {
					return fmt.Errorf("revision %d: %w", rev, err)
				}
				l.look(clock.System.Now(), h)
				*next = rev + 1
				r.Events = r.Events[n:]
			}
		}
		if clock.Sleep(ctx, clock.System, 10*look) != nil {
			return nil //nolint:nilerr // nobody looks any more
		}
	}
}

// registered lists the processes of a role that are registered.
func (o *observer) registered(ctx context.Context, role string) (map[string]bool, error) {
	roster, err := membership.ReadRoster(ctx, o.st, role+"s")
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for name := range roster.Members {
		there[name] = true
	}
	return there, nil
}

// even tells whether the load is even now.
func (o *observer) even(ctx context.Context) (bool, error) {
	v, roster, err := membership.ReadClaims(ctx, o.st)
	return err == nil && even(v, roster), err
}

// owned lists what each pserver owns: by name, the shards with their
// generations.
func (o *observer) owned(ctx context.Context) (map[string]map[int]int64, error) {
	view, err := membership.ReadView(ctx, o.st)
	if err != nil {
		return nil, err
	}
	owned := map[string]map[int]int64{}
	for shard, w := range view.Shards {
		if !w.Owned() {
			continue
		}
		if owned[w.Name] == nil {
			owned[w.Name] = map[int]int64{}
		}
		owned[w.Name][shard] = w.Generation
	}
	return owned, nil
}

// awaitServed waits until each shard is served under a later generation than
// the one given. A pserver that does not answer does not serve.
func (o *observer) awaitServed(ctx context.Context, owned map[int]int64) error {
	for {
		if served, err := o.served(ctx, owned); err == nil && served {
			return nil
		}
		if err := clock.Sleep(ctx, clock.System, look); err != nil {
			return err
		}
	}
}

func (o *observer) served(ctx context.Context, owned map[int]int64) (bool, error) {
	view, err := membership.ReadView(ctx, o.st)
	if err != nil {
		return false, err
	}
	answers := map[string]client.Identity{}
	for shard, before := range owned {
		w := view.Shards[shard]
		if !w.Owned() || w.Generation <= before {
			return false, nil
		}
		if _, asked := answers[w.Address]; !asked {
			within, cancel := context.WithTimeout(ctx, time.Second)
			answers[w.Address], err = client.Identify(within, transport.TCP, w.Address)
			cancel()
			if err != nil {
				return false, err
			}
		}
		if answers[w.Address].Shards[shard] != w.Generation {
			return false, nil
		}
	}
	return true, nil
}
