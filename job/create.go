package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"starfish/internal/clock"
	"starfish/internal/failpoint"
	"starfish/internal/store"
)

// The keys of the records that this package writes, below the job's prefix.
const (
	KeySpec       = "spec"
	KeyParameters = "parameters"
	KeyResult     = "result"
)

var (
	// ErrNoJob: the job does not exist (yet).
	ErrNoJob = errors.New("job: no such job")
	// ErrSpecDiffers: the job exists with another spec or other parameters;
	// the error's text has the first difference.
	ErrSpecDiffers = errors.New("job: the job exists with another spec")
	// ErrUnanswered: the store has not answered, or with an error; the job may
	// have been created. Create may be repeated.
	ErrUnanswered = errors.New("no answer from the store")
)

// Job is a job as it is stored.
type Job struct {
	UUID       uuid.UUID
	Spec       *Spec
	Parameters Parameters
	// SpecRev is the create revision of `spec`: it identifies this very job,
	// also among jobs of the same name.
	SpecRev int64
	// Created tells whether this call created the job.
	Created bool
}

// Prefix is the prefix of all keys of the job name.
func Prefix(name string) string { return "/starfish/" + name + "/" }

// Guard is the condition that the job is still this one.
func (j Job) Guard() store.Cmp { return store.Created(KeySpec, j.SpecRev) }

// specRecord is the value of the key `spec`.
type specRecord struct {
	V    int             `json:"v"`
	UUID uuid.UUID       `json:"uuid"`
	Spec json.RawMessage `json:"spec"`
}

// specVersion is the version of the record `spec`.
const specVersion = 1

// attempts is how often Create asks a store that answers with errors.
const attempts = 3

// Create stores the job if it is not there yet, in one transaction together
// with ops (the queue's first records, `owners`), and otherwise checks that it
// is the same job. st is the job's own view of the store. It may be called by
// any number of processes, and again after any failure: the job is created
// once and completely, or not at all.
func Create(ctx context.Context, st store.Store, spec *Spec, params Parameters, ops ...store.Op) (Job, error) {
	if err := params.Validate(); err != nil {
		return Job{}, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return Job{}, fmt.Errorf("job: %w", err)
	}
	record, err := json.Marshal(specRecord{V: specVersion, UUID: id, Spec: spec.JSON()})
	if err != nil {
		return Job{}, fmt.Errorf("job: %w", err)
	}
	list, err := json.Marshal(params)
	if err != nil {
		return Job{}, fmt.Errorf("job: %w", err)
	}
	t := store.Txn{
		If: []store.Cmp{store.Absent(KeySpec)},
		Then: append([]store.Op{store.Put(KeySpec, record, 0), store.Put(KeyParameters, list, 0)},
			ops...),
		Else: []store.Op{store.Get(KeySpec), store.Get(KeyParameters)},
	}
	failpoint.Hit(failpoint.BeforeCreate)
	r, err := persist(ctx, st, t)
	if err != nil {
		if errors.Is(err, store.ErrHistory) || errors.Is(err, store.ErrInvalid) {
			return Job{}, fmt.Errorf("job: create: %w", err)
		}
		return Job{}, fmt.Errorf("job: create: %w: %w", ErrUnanswered, err)
	}
	if r.Succeeded {
		failpoint.Hit(failpoint.AfterCreate)
		return Job{UUID: id, Spec: spec, Parameters: params, SpecRev: r.Revision, Created: true}, nil
	}
	j, err := decode(r.First(0), r.First(1))
	if err != nil {
		return Job{}, err
	}
	j.Created = j.UUID == id // the answer to an earlier attempt was lost
	return j, j.same(spec, params)
}

// persist runs a transaction that may be repeated. An error may hide a
// success; the next attempt finds that out by itself.
func persist(ctx context.Context, st store.Store, t store.Txn) (r store.Result, err error) {
	for range attempts {
		r, err = st.Txn(ctx, t)
		if err == nil || ctx.Err() != nil || errors.Is(err, store.ErrHistory) {
			break
		}
	}
	return r, err
}

// same compares the job with what a process was given.
func (j Job) same(spec *Spec, params Parameters) error {
	if d := Diff(j.Spec, spec); d != "" {
		return fmt.Errorf("%w: %s", ErrSpecDiffers, d)
	}
	if d := j.Parameters.diff(params); d != "" {
		return fmt.Errorf("%w: %s", ErrSpecDiffers, d)
	}
	return nil
}

// Same is nil if spec means this job, ErrSpecDiffers with the first difference
// otherwise.
func (j Job) Same(spec *Spec) error { return j.same(spec, j.Parameters) }

// Load reads the job; ErrNoJob if it does not exist.
func Load(ctx context.Context, st store.Store) (Job, error) {
	j, _, err := load(ctx, st)
	return j, err
}

func load(ctx context.Context, st store.Store) (Job, int64, error) {
	r, err := store.Read(ctx, st, store.Get(KeySpec), store.Get(KeyParameters))
	if err != nil {
		return Job{}, 0, fmt.Errorf("job: load: %w", err)
	}
	if !r.First(0).Exists() {
		return Job{}, r.Revision, ErrNoJob
	}
	j, err := decode(r.First(0), r.First(1))
	return j, r.Revision, err
}

// decode reads the two records of a job.
func decode(spec, params store.KV) (Job, error) {
	var version struct{ V int }
	if err := json.Unmarshal(spec.Value, &version); err != nil {
		return Job{}, fmt.Errorf("job: the record spec is broken: %w", err)
	}
	if version.V != specVersion {
		return Job{}, fmt.Errorf("job: the record spec has version %d; this program knows %d", version.V, specVersion)
	}
	var record specRecord
	if err := json.Unmarshal(spec.Value, &record); err != nil {
		return Job{}, fmt.Errorf("job: the record spec is broken: %w", err)
	}
	j := Job{UUID: record.UUID, Spec: new(Spec), SpecRev: spec.CreateRev}
	if err := j.Spec.UnmarshalJSON(record.Spec); err != nil {
		return Job{}, fmt.Errorf("job: the record spec is not of this version: %w", err)
	}
	if err := json.Unmarshal(params.Value, &j.Parameters); err != nil {
		return Job{}, fmt.Errorf("job: the record parameters is broken: %w", err)
	}
	return j, j.Parameters.Validate()
}

const (
	// pause is how long Wait rests after a watch broke.
	pause = time.Second
	// silence is how long it trusts a watch that says nothing.
	silence = time.Minute
)

// Wait reads the job as soon as it exists. It returns when ctx ends, when the
// job's records cannot be read or when the store's history is broken; other
// errors of the store are waited out.
func Wait(ctx context.Context, st store.Store) (Job, error) {
	for {
		j, rev, err := load(ctx, st)
		switch {
		case errors.Is(err, ErrNoJob):
			err = await(ctx, st, rev+1)
		case err != nil && rev == 0 && !errors.Is(err, store.ErrHistory): // not answered
			err = clock.Sleep(ctx, clock.System, pause)
		default:
			return j, err
		}
		if err != nil {
			return Job{}, fmt.Errorf("job: waiting for the job: %w", err)
		}
	}
}

// await returns once `spec` may exist: it was written at rev or later, or the
// watch broke, and then only after a pause.
func await(ctx context.Context, st store.Store, rev int64) error {
	watch, stop := context.WithTimeout(ctx, silence)
	defer stop()
	for r := range st.Watch(watch, KeySpec, "", rev) {
		if r.Err == nil {
			return nil
		}
		if errors.Is(r.Err, store.ErrHistory) {
			return r.Err
		}
	}
	return clock.Sleep(ctx, clock.System, pause)
}
