package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/ledger"
)

// leaveTime is how long processes and leases may outlive `starfish run`.
const leaveTime = leaseTTL + 5*time.Second

// check looks at what a complete run has left.
func (r *run) check(ctx context.Context) error {
	return errors.Join(r.checkResult(), r.checkModel(), r.checkProcesses(ctx), r.checkFiles(), r.checkStore(ctx))
}

// checkResult: every record once in each pass, and all sums alike.
func (r *run) checkResult() error {
	text, err := os.ReadFile(r.file("result.json"))
	if err != nil {
		return err
	}
	var res job.Result
	if err := json.Unmarshal(text, &res); err != nil {
		return err
	}
	var errs []error
	same := func(what string, got, want int64) {
		if got != want {
			errs = append(errs, fmt.Errorf("%s: %d instead of %d", what, got, want))
		}
	}
	want := int64(r.plan.Shape.Records) * int64(r.plan.Shape.Passes)
	if res.Phase != string(etcdqueue.PhaseComplete) {
		errs = append(errs, fmt.Errorf("the result's phase is %s", res.Phase))
	}
	same("records", res.Records, want)
	same("records of the lanes", res.Queue.Records, want)
	same("complete chunks", res.Queue.Complete, res.Queue.Chunks*int64(res.Passes))
	same("failed chunks", res.Queue.Failed, 0)
	same("shards", int64(len(res.Shards)), int64(r.plan.Shape.Shards))
	for _, s := range res.Shards {
		same(fmt.Sprintf("records of shard %d", s.Shard), s.Records, want)
		same(fmt.Sprintf("batches of shard %d", s.Shard), s.Batches, res.Queue.Batches)
		same(fmt.Sprintf("lost batches of shard %d", s.Shard), s.Lost, 0)
		same(fmt.Sprintf("skipped batches of shard %d", s.Shard), s.Skipped, 0)
		r.out.Replayed += s.Replayed
		r.out.Duplicates += s.Duplicates
	}
	return errors.Join(errs...)
}

// checkModel: the audit model has counted exactly.
func (r *run) checkModel() error {
	if r.plan.Shape.Model != "count" {
		return nil
	}
	d, err := differences(r.file("model.txt"), r.counts, r.plan.Shape.Passes)
	if err == nil && d != "" {
		err = fmt.Errorf("the model has counted wrongly: %s", d)
	}
	return err
}

// checkProcesses: none is left.
func (r *run) checkProcesses(ctx context.Context) error {
	var left []process
	err := eventually(ctx, func() (bool, error) {
		left = marked(r.mark)
		return len(left) == 0, nil
	})
	if errors.Is(err, errStill) {
		err = fmt.Errorf("processes are left: %v", left)
	}
	return err
}

// checkFiles: no temporary file is left, and no point.
func (r *run) checkFiles() error {
	var left []string
	for _, dir := range []string{r.file("tmp"), r.file("run", "checkpoints")} {
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			if dir == r.file("tmp") || strings.HasSuffix(f.Name(), ".tmp") || strings.HasSuffix(f.Name(), ".bad") {
				left = append(left, f.Name())
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("files are left: %v", left)
	}
	return nil
}

// checkStore wakes the run's etcd: every listed checkpoint loads into a shard,
// no file is there that is not listed, no registration and no lease is left.
func (r *run) checkStore(ctx context.Context) error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	srv, err := embedded.Start(ctx, embedded.Config{Dir: r.file("run", "etcd"), Log: quiet})
	if err != nil {
		return err
	}
	defer srv.Close()
	conn := cli.Etcd{Endpoints: srv.Endpoints(), Timeout: cli.DefaultEtcdTimeout}
	all, closeStore, err := conn.Connect(ctx, quiet)
	if err != nil {
		return err
	}
	defer closeStore()
	st := store.Prefixed(all, job.Prefix(jobName))
	leases := 0
	err = eventually(ctx, func() (_ bool, err error) {
		leases, err = srv.Leases(ctx)
		return leases == 0, err
	})
	if errors.Is(err, errStill) {
		err = fmt.Errorf("%d leases are left", leases)
	}
	return errors.Join(err, checkKeys(ctx, st), r.checkCheckpoints(ctx, st))
}

// checkKeys: nothing is left that lives only as long as a process.
func checkKeys(ctx context.Context, st store.Store) error {
	for _, prefix := range []string{membership.PServers, membership.Trainers, "steward"} {
		r, err := store.Read(ctx, st, store.Range(prefix, store.PrefixEnd(prefix), 0))
		if err != nil {
			return err
		}
		for _, kv := range r.KVs[0] {
			return fmt.Errorf("%s is left", kv.Key)
		}
	}
	return nil
}

func (r *run) checkCheckpoints(ctx context.Context, st store.Store) error {
	j, err := job.Load(ctx, st)
	if err != nil {
		return err
	}
	metas, _, err := checkpoint.ListAll(ctx, st, j.Spec.Shards)
	if err != nil {
		return err
	}
	dir := r.file("run", "checkpoints")
	loader := checkpoint.Loader{Dir: dir, Job: j.UUID}
	var listed []string
	for shard, ms := range metas {
		if len(ms) == 0 || ms[0].Passes != r.plan.Shape.Passes {
			return fmt.Errorf("the newest checkpoint of shard %d does not cover the job", shard)
		}
		for _, m := range ms {
			listed = append(listed, m.Path)
			core, err := pserver.NewShard(j.Parameters, shard, j.Spec.Queue.Lanes, pserver.ShardOptions{Policy: ledger.Replay, Blank: true})
			if err != nil {
				return err
			}
			if _, skipped, err := loader.Load(ctx, []checkpoint.Meta{m}, core.NewLoader()); err != nil {
				return fmt.Errorf("a listed checkpoint does not load: %w (%v)", err, skipped)
			}
			r.out.Checkpoints++
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "shard") && !slices.Contains(listed, f.Name()) {
			return fmt.Errorf("the checkpoint %s is left, and not listed", f.Name())
		}
	}
	return nil
}

// errStill: something was not over in time.
var errStill = errors.New("still")

// eventually waits until cond holds, for leaveTime at most.
func eventually(ctx context.Context, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, leaveTime, errStill)
	defer cancel()
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		if err := clock.Sleep(ctx, clock.System, 4*look); err != nil {
			return err
		}
	}
}
