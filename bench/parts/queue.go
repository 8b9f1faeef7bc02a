package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/store/etcd"
)

// takers is how many clients there are, and lanes.
const takers = 64

// warmth is how long they are at work before anything is measured.
const warmth = 10 * time.Second

// queues are takes and completes of chunks over an etcd in this process.
func queues() []part {
	var parts []part
	for _, p := range []struct {
		chunks int
		target float64
	}{{1, 0.6}, {8, 4}, {64, 25}} {
		parts = append(parts, part{
			name: fmt.Sprintf("queue, 64 clients, take+complete of %d, chunks ÷ plain puts", p.chunks), unit: "s a chunk or put", target: atLeast(p.target),
			open: func(c *config) (func() (pair, error), func() error, error) { return queueRounds(c, p.chunks) },
		})
	}
	for _, n := range []int64{1_000_000, 100_000_000} {
		for i, what := range []string{"processor time", "transactions", "bytes"} {
			parts = append(parts, part{
				name: fmt.Sprintf("queue of %d chunks ÷ of 1000, %s of a take+complete", n, what), unit: []string{"µs", "", "bytes"}[i], target: atMost(1.05),
				open: func(*config) (func() (pair, error), func() error, error) { return sizeRounds(n, i) },
			})
		}
	}
	return parts
}

// cluster is an etcd in this process, with a client for each taker.
type cluster struct {
	dir    string
	server *embedded.Server
	stores []*etcd.Store
}

func newCluster(clients int) (_ *cluster, err error) {
	c := &cluster{}
	if c.dir, err = os.MkdirTemp("", "bench-parts-"); err != nil {
		return nil, err
	}
	if c.server, err = embedded.Start(context.Background(), embedded.Config{Dir: c.dir}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	for range clients {
		s, err := etcd.Dial(context.Background(), etcd.Config{Endpoints: c.server.Endpoints()})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.stores = append(c.stores, s)
	}
	return c, nil
}

func (c *cluster) close() error {
	var errs []error
	for _, s := range c.stores {
		errs = append(errs, s.Close())
	}
	c.server.Close()
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// queueRounds lets 64 clients, each with a lane of its own, take and complete
// chunks, so many at a time, and then put records of a lane's size.
func queueRounds(cfg *config, chunks int) (func() (pair, error), func() error, error) {
	c, err := newCluster(takers)
	if err != nil {
		return nil, nil, err
	}
	// As many requests on both sides: a take and a complete are two.
	const requests = 20
	queues := make([]*etcdqueue.Queue, takers)
	end := func() error {
		for _, q := range queues {
			if q != nil {
				q.Close()
			}
		}
		return c.close()
	}
	for i := range queues {
		queues[i], err = etcdqueue.New(etcdqueue.Config{
			Store: store.Prefixed(c.stores[i], "/bench/"), Lanes: takers, Shuffle: true, Seed: 1,
			Name: fmt.Sprint("trainer-", i), Incarnation: fmt.Sprint(i), Peers: func() int { return takers },
		})
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
	}
	if err := queues[0].Create(context.Background(), etcdqueue.Manifest{V: 1, Chunks: 10_000_000}); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	all := func(f func(i int) error) func() error {
		return func() error {
			var g errgroup.Group
			for i := range takers {
				g.Go(times(requests/2, func() error { return f(i) }))
			}
			return g.Wait()
		}
	}
	value := make([]byte, 200)
	take, put := all(func(i int) error { return takeAndComplete(queues[i], chunks) }), all(func(i int) error {
		for range 2 {
			_, err := c.stores[i].Txn(context.Background(), store.Txn{Then: []store.Op{store.Put(fmt.Sprint("/plain/", i), value, 0)}})
			if err != nil {
				return err
			}
		}
		return nil
	})
	round := func() (p pair, err error) {
		u, err := took(take)
		if err != nil {
			return p, err
		}
		p.ours = cfg.seconds(u) / (takers * requests / 2) / float64(chunks)
		u, err = took(put)
		p.yardstick = cfg.seconds(u) / (takers * requests)
		return p, err
	}
	// With connections and watches in place, and each client settled in a lane.
	for began := time.Now(); time.Since(began) < warmth; {
		if _, err = round(); err != nil {
			return nil, nil, errors.Join(err, end())
		}
	}
	return round, end, nil
}

func takeAndComplete(q *etcdqueue.Queue, chunks int) error {
	for chunks > 0 {
		tasks, err := q.Take(context.Background(), chunks)
		if err != nil {
			return err
		}
		done := make([]etcdqueue.Done, len(tasks))
		for i, t := range tasks {
			done[i].Task = t
		}
		if err := q.Complete(context.Background(), done); err != nil {
			return err
		}
		chunks -= len(tasks)
	}
	return nil
}

// counted counts what a queue asks of its store.
type counted struct {
	store.Store
	transactions, bytes atomic.Int64
}

func (c *counted) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	c.transactions.Add(1)
	for _, op := range t.Then {
		c.bytes.Add(int64(len(op.Key) + len(op.Value)))
	}
	return c.Store.Txn(ctx, t)
}

// sizeRounds compares one client on a queue of n chunks with one on a queue of
// a thousand: processor time (etcd's included), transactions, or bytes written.
func sizeRounds(n int64, what int) (func() (pair, error), func() error, error) {
	c, err := newCluster(1)
	if err != nil {
		return nil, nil, err
	}
	made := 0
	one := func(n int64) (float64, error) {
		made++
		counts := &counted{Store: store.Prefixed(c.stores[0], fmt.Sprintf("/bench-%d/", made))}
		q, err := etcdqueue.New(etcdqueue.Config{Store: counts, Lanes: takers, Shuffle: true, Seed: 1, Name: "trainer-0", Incarnation: fmt.Sprint(made)})
		if err != nil {
			return 0, err
		}
		defer q.Close()
		if err := q.Create(context.Background(), etcdqueue.Manifest{V: 1, Chunks: n}); err != nil {
			return 0, err
		}
		if err := times(10, func() error { return takeAndComplete(q, 1) })(); err != nil {
			return 0, err
		}
		const ops = 500
		transactions, bytes := counts.transactions.Load(), counts.bytes.Load()
		u, err := took(times(ops, func() error { return takeAndComplete(q, 1) }))
		switch what {
		case 0:
			return u.cpu / ops * 1e6, err
		case 1:
			return float64(counts.transactions.Load()-transactions) / ops, err
		}
		return float64(counts.bytes.Load()-bytes) / ops, err
	}
	return func() (p pair, err error) {
		if p.ours, err = one(n); err == nil {
			p.yardstick, err = one(1000)
		}
		return p, err
	}, c.close, nil
}
