package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
	"starfish/reader"
	"starfish/trainer/data"
	"starfish/trainer/model"
)

// planData lists the files and cuts them; data that is missing or empty at the
// start is an error of configuration.
func planData(spec *job.Spec, paths []string) (*reader.Plan, error) {
	plan, err := data.NewPlan(spec, paths)
	return plan, wrongData(err)
}

// planChecked is planData with a look into the files, before a job is made of
// them.
func planChecked(spec *job.Spec, paths []string) (*reader.Plan, error) {
	plan, err := planData(spec, paths)
	if err != nil {
		return nil, err
	}
	return plan, wrongData(plan.Check())
}

// wrongData marks data that no job can be made of.
func wrongData(err error) error {
	if errors.Is(err, reader.ErrNoData) || errors.Is(err, reader.ErrColumns) || errors.Is(err, reader.ErrFormat) {
		return job.Exit(job.ExitUsage, err)
	}
	return err
}

func parameters(spec *job.Spec, m model.Model) (job.Parameters, error) {
	list, err := m.Parameters(spec)
	if err != nil {
		return job.Parameters{}, job.Exit(job.ExitUsage, err)
	}
	params, err := job.Resolve(spec, list)
	if err != nil {
		return job.Parameters{}, job.Exit(job.ExitUsage, err)
	}
	return params, nil
}

// initialOps are the records of the job beside spec and parameters.
func initialOps(spec *job.Spec, plan *reader.Plan) []store.Op {
	m := etcdqueue.Manifest{Chunks: plan.Chunks(), Fingerprint: plan.Fingerprint(), Files: plan.Manifest()}
	return append(etcdqueue.InitialOps(m, spec.Queue.Lanes), membership.InitialOwners(spec.Shards))
}

// loadJob makes the job or waits for it, and checks that this process sees the
// same spec and the same files.
func (t *Trainer) loadJob(ctx context.Context) (job.Job, model.Model, *reader.Plan, error) {
	var m model.Model
	var err error
	if t.cfg.Spec != nil {
		if m, err = t.cfg.model(t.cfg.Spec); err != nil {
			return job.Job{}, nil, nil, job.Exit(job.ExitUsage, err)
		}
		err := t.patiently(ctx, func(err error) bool { return errors.Is(err, job.ErrUnanswered) }, func() error {
			_, err := CreateJob(ctx, t.cfg.Store, t.cfg.Spec, m)
			return err
		})
		if err != nil {
			return job.Job{}, nil, nil, err
		}
	}
	if _, err := job.Load(ctx, t.cfg.Store); errors.Is(err, job.ErrNoJob) {
		t.cfg.Log.WithField("job", t.cfg.Job).Info("there is no such job yet: waiting for it to be submitted")
	}
	j, err := job.Wait(ctx, t.cfg.Store)
	if err != nil {
		return job.Job{}, nil, nil, err
	}
	if m, err = t.cfg.model(j.Spec); err != nil {
		return job.Job{}, nil, nil, job.Exit(job.ExitUsage, err)
	}
	own, err := parameters(j.Spec, m)
	if err != nil {
		return job.Job{}, nil, nil, err
	}
	if d := differ(j.Parameters, own); d != "" {
		return job.Job{}, nil, nil, job.Exitf(job.ExitUsage, "this program's model differs from the job's: %s", d)
	}
	var plan *reader.Plan
	err = t.patiently(ctx, retryable, func() (err error) {
		plan, err = t.checkData(ctx, j)
		return err
	})
	return j, m, plan, err
}

// patiently repeats f while it fails with errors that may heal, until ctx ends.
func (t *Trainer) patiently(ctx context.Context, heals func(error) bool, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil || !heals(err) {
			return err
		}
		if attempt == 0 {
			t.cfg.Log.WithError(err).Warn("cannot start yet, trying again")
		}
		if err := clock.Sleep(ctx, t.cfg.Clock, backOff(attempt)); err != nil {
			return err
		}
	}
}

// differ names the first difference between two lists of parameters.
func differ(have, want job.Parameters) string {
	for i := range max(len(have.List), len(want.List)) {
		if i >= len(have.List) {
			return fmt.Sprintf("the job has no parameter %q", want.List[i].Name)
		}
		if i >= len(want.List) {
			return fmt.Sprintf("the model has no parameter %q", have.List[i].Name)
		}
		if !reflect.DeepEqual(have.List[i], want.List[i]) {
			return fmt.Sprintf("parameter %q is %+v in the job and %+v in the model", have.List[i].Name, have.List[i], want.List[i])
		}
	}
	return ""
}

// checkData compares the files that this process sees with the manifest of the
// current pass.
func (t *Trainer) checkData(ctx context.Context, j job.Job) (*reader.Plan, error) {
	q, err := etcdqueue.New(queueConfig(t.cfg.Store, j, etcdqueue.Config{}))
	if err != nil {
		return nil, err
	}
	defer q.Close()
	state, err := q.State(ctx)
	if err != nil || state.Phase.Ended() {
		return nil, err
	}
	manifest, err := q.Manifest(ctx, state.Pass)
	if err != nil {
		return nil, err
	}
	plan, err := data.NewPlan(j.Spec, j.Spec.Data.Train)
	if err != nil {
		return nil, job.Exit(job.ExitData, fmt.Errorf("the data that the job trains on: %w", err))
	}
	if d := plan.Diff(manifest.Files); d != "" {
		return nil, job.Exitf(job.ExitData, "this process sees other data than the job: %s", d)
	}
	t.describe(plan)
	return plan, nil
}

// describe says what is special about the files.
func (t *Trainer) describe(plan *reader.Plan) {
	if n := len(plan.Skipped); n > 0 {
		t.cfg.Log.WithField("files", n).WithField("first", plan.Skipped[0]).Info("names in directories were passed over")
	}
	if files := plan.Unsplit(); len(files) > 0 {
		largest := slices.MaxFunc(files, func(a, b reader.File) int { return cmp.Compare(a.Size, b.Size) })
		t.cfg.Log.WithField("files", len(files)).WithField("largest_bytes", largest.Size).Info("each compressed file is one chunk")
	}
}

// queueConfig fills in what belongs to the job.
func queueConfig(st store.Store, j job.Job, c etcdqueue.Config) etcdqueue.Config {
	c.Store = st
	c.Lanes, c.MaxFailures, c.StallTimeout = j.Spec.Queue.Lanes, j.Spec.Queue.MaxFailures, j.Spec.Queue.StallTimeout
	c.Shuffle, c.Seed, c.Passes = j.Spec.Train.Shuffle, j.Spec.Train.Seed, j.Spec.Train.Passes
	if j.Spec.Train.Mode == job.ModeAsync { // a synchronous step waits for its batch, whoever has it
		c.Speculate = j.Spec.Queue.Speculate
	}
	return c
}
