package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/trainer/model"
)

// Builder makes the model that a spec describes.
type Builder func(spec *job.Spec) (model.Model, error)

// Config is what one trainer is. What the job means stands in the job's spec.
// The zero value of a field is its default.
type Config struct {
	// Store holds the job: every key is relative to the job's prefix. Required.
	Store store.Store
	// Network defaults to TCP.
	Network transport.Network
	// Clock defaults to the machine's.
	Clock clock.Clock
	Log   logrus.FieldLogger
	// Registerer takes the metrics; nil keeps them private.
	Registerer prometheus.Registerer

	// Job is the job's name, for people. Required.
	Job string
	// Spec makes the job if there is none and checks that it is the one
	// expected; nil waits until somebody else has made it.
	Spec *job.Spec
	// Models are the program's own models by the name that the spec's
	// model.type gives them; the built-in ones need no entry.
	Models map[string]Builder

	// Name is the trainer's name in the job. Required.
	Name string
	// Version of the program, for the registration.
	Version string
	// Listen is where the trainer answers who it is; ":0" by default.
	Listen string
	// Advertise is the address at which others ask; by default the host's name
	// and the listener's port.
	Advertise string
	// Takeover takes the name over even from a process that is alive.
	Takeover bool
	// Take is how many chunks a take asks for; 0 means about a second's work.
	Take int
}

// Validate reports every violation at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("trainer: Store is missing"))
	}
	if c.Name == "" {
		errs = append(errs, errors.New("trainer: the name is missing"))
	}
	if c.Job == "" {
		errs = append(errs, errors.New("trainer: the job's name is missing"))
	}
	if c.Spec != nil && c.Spec.Job != c.Job {
		errs = append(errs, fmt.Errorf("trainer: the spec is of job %q, not %q", c.Spec.Job, c.Job))
	}
	if err := c.checkFlags(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkFlags reports what is wrong with the fields that flags set, which is known
// before anything else is.
func (c *Config) checkFlags() error {
	if c.Take < 0 {
		return fmt.Errorf("--take %d is negative", c.Take)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Network == nil {
		c.Network = transport.TCP
	}
	if c.Clock == nil {
		c.Clock = clock.System
	}
	if c.Log == nil {
		c.Log = logrus.StandardLogger()
	}
	if c.Listen == "" {
		c.Listen = ":0"
	}
	c.Log = c.Log.WithFields(logrus.Fields{"job": c.Job, "trainer": c.Name})
	return c
}

// model makes the job's model: one of the program's own, or a built-in one.
func (c Config) model(spec *job.Spec) (model.Model, error) {
	if b, ok := c.Models[spec.Model.Type]; ok {
		return b(spec)
	}
	return model.New(spec)
}

// CreateJob creates the job that spec describes, if there is none, in one
// transaction: spec, parameters, state, the first pass and the record of
// owners. If there is one it must have the same spec and be of the same data.
func CreateJob(ctx context.Context, st store.Store, spec *job.Spec, m model.Model) (job.Job, error) {
	plan, err := planChecked(spec, spec.Data.Train)
	if err != nil {
		return job.Job{}, err
	}
	if len(spec.Data.Test) > 0 {
		if _, err := planChecked(spec, spec.Data.Test); err != nil {
			return job.Job{}, err
		}
	}
	params, err := parameters(spec, m)
	if err != nil {
		return job.Job{}, err
	}
	return job.Create(ctx, st, spec, params, initialOps(spec, plan)...)
}
