package pserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/transport"
)

// Recovery says when a restored shard enters the one-barrier recovery mode of
// synchronous training. In asynchronous training there is no barrier and
// nothing to enter.
type Recovery string

// The values of Recovery.
const (
	RecoveryAuto   Recovery = "auto"
	RecoveryAlways Recovery = "always"
	RecoveryNever  Recovery = "never"
)

// leastMemory is the smallest limit that makes sense, in bytes.
const leastMemory = 1 << 20

// DefaultDrain is how long an orderly stop may take.
const DefaultDrain = 20 * time.Second

// Config is what one pserver is. What the job means stands in the job's spec.
// The zero value of a field is its default.
type Config struct {
	// Store holds the job: every key is relative to the job's prefix.
	Store store.Store
	// Network defaults to TCP.
	Network transport.Network
	// FS defaults to the machine's file system.
	FS checkpoint.FS
	// Clock defaults to the machine's.
	Clock clock.Clock
	Log   logrus.FieldLogger
	// Registerer takes the metrics; nil keeps them private.
	Registerer prometheus.Registerer

	// Create makes the job, or checks that it is the one expected; nil waits
	// until somebody else made it.
	Create func(ctx context.Context) error

	// Name is the pserver's name in the job. Required.
	Name string
	// Version of the program, for the registration.
	Version string
	// Listen is the address to serve on; ":0" by default.
	Listen string
	// Advertise is the address that trainers dial; by default the host's name
	// (or the listener's own host, if it has one) and the listener's port.
	Advertise string
	// CheckpointDir replaces the spec's checkpoint.dir; empty keeps it.
	CheckpointDir string
	// Recovery defaults to RecoveryAuto.
	Recovery Recovery
	// Takeover takes the name over even from a process that is alive.
	Takeover bool
	// AllowReinit lets a shard of which no listed checkpoint loads begin anew,
	// instead of stopping the process with exit code 5. What it had is lost.
	AllowReinit bool
	// MaxMemory bounds the bytes of tables and of incomplete pushes; 0: no bound.
	// Pushes that would make rows beyond it are refused, and shards that are known
	// to take more than is left are neither claimed nor received.
	MaxMemory int64
	// Drain bounds an orderly stop; DefaultDrain by default.
	Drain time.Duration
}

// Validate reports every violation at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("pserver: Store is missing"))
	}
	if c.Name == "" {
		errs = append(errs, errors.New("pserver: the name is missing"))
	}
	if err := c.CheckFlags(); err != nil {
		errs = append(errs, err)
	}
	if c.Drain < 0 {
		errs = append(errs, fmt.Errorf("pserver: drain %v is negative", c.Drain))
	}
	return errors.Join(errs...)
}

// CheckFlags reports what is wrong with the fields that flags set, which is known
// before anything else is.
func (c *Config) CheckFlags() error {
	switch c.Recovery {
	case "", RecoveryAuto, RecoveryAlways, RecoveryNever:
	default:
		return fmt.Errorf("--recovery %q is none of auto, always, never", c.Recovery)
	}
	if c.MaxMemory < 0 || c.MaxMemory > 0 && c.MaxMemory < leastMemory {
		return fmt.Errorf("--max-memory %d bytes: the least is 1MiB", c.MaxMemory)
	}
	return nil
}
