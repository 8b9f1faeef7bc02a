package etcdqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"starfish/etcdqueue"
	"starfish/internal/store/embedded"
)

// A worker that goes twice over five pieces of work. Any number of such workers
// may run at once, on any machines, and may be killed at any moment.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	endpoints, stop := someEtcd(ctx) // any etcd will do
	defer stop()

	queue, err := etcdqueue.Dial(ctx, etcdqueue.Etcd{Endpoints: endpoints}, "/work", etcdqueue.Config{
		Lanes: 4, Passes: 2, Name: "worker-0", Incarnation: "a UUID, made at the start of the process",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer queue.Close()
	// Every worker may try to create the queue: the first one does.
	if err := queue.Create(ctx, etcdqueue.Manifest{Chunks: 5}); err != nil {
		fmt.Println(err)
		return
	}
	for {
		tasks, err := queue.Take(ctx, 2)
		switch {
		case errors.Is(err, etcdqueue.ErrEmpty):
			// The others may be at work on the rest of the pass. Somebody has
			// to take back what the dead have left, and to begin the next pass:
			// here, whoever has nothing else to do.
			if _, err := queue.Requeue(ctx, nil); err != nil {
				fmt.Println(err)
				return
			}
			state, err := queue.Turn(ctx, nil)
			if err != nil {
				fmt.Println(err)
				return
			}
			if state.Phase == etcdqueue.PhaseDraining {
				// All is done. (A job whose results may get lost would Reopen
				// what is lost.)
				if err := queue.Finish(ctx, etcdqueue.PhaseComplete, "", nil, state.Guard()); err != nil {
					fmt.Println(err)
					return
				}
				continue
			}
			if err := queue.Changed(ctx); err != nil {
				fmt.Println(err)
				return
			}
		case errors.Is(err, etcdqueue.ErrDone):
			sum, _, err := queue.Totals(ctx)
			fmt.Printf("%d complete, %d records, %v\n", sum.Complete, sum.Records, err)
			return
		case err != nil:
			fmt.Println(err)
			return
		}
		for _, task := range tasks {
			fmt.Printf("pass %d chunk %d\n", task.Pass, task.Chunk)
			err := queue.Complete(ctx, []etcdqueue.Done{{Task: task, Sums: etcdqueue.Sums{Batches: 1, Records: 100}}})
			if err != nil && !errors.Is(err, etcdqueue.ErrStale) {
				fmt.Println(err)
				return
			}
		}
	}
	// Output:
	// pass 0 chunk 0
	// pass 0 chunk 1
	// pass 0 chunk 2
	// pass 0 chunk 3
	// pass 0 chunk 4
	// pass 1 chunk 0
	// pass 1 chunk 1
	// pass 1 chunk 2
	// pass 1 chunk 3
	// pass 1 chunk 4
	// 10 complete, 1000 records, <nil>
}

// someEtcd starts an etcd of its own for the example.
func someEtcd(ctx context.Context) (endpoints []string, stop func()) {
	dir, err := os.MkdirTemp("", "etcdqueue-example-")
	if err != nil {
		panic(err)
	}
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir})
	if err != nil {
		panic(err)
	}
	return server.Endpoints(), func() {
		server.Close()
		_ = os.RemoveAll(dir)
	}
}
