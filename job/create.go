package job

import (
	"context"
	"errors"

	"github.com/google/uuid"

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

// Create stores the job if it is not there yet, in one transaction together
// with ops (the queue's initial records, `owners`), and otherwise checks that
// it is the same job. st is the job's own view of the store.
func Create(ctx context.Context, st store.Store, spec *Spec, params Parameters, ops ...store.Op) (Job, error) {
	return Job{}, ErrNoJob
}

// Load reads the job; ErrNoJob if it does not exist.
func Load(ctx context.Context, st store.Store) (Job, error) { return Job{}, ErrNoJob }

// Wait reads the job as soon as it exists.
func Wait(ctx context.Context, st store.Store) (Job, error) { return Job{}, ErrNoJob }
