package client

import (
	"context"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
)

// Config describes a client.
type Config struct {
	Network    transport.Network
	Store      store.Store // job-scoped
	Job        uuid.UUID
	Parameters job.Parameters
	// Clock defaults to clock.System.
	Clock clock.Clock
	// Waiting is told what the client waits for, when that changes, and "" when
	// it goes on. Optional.
	Waiting func(reason string)
	Log     logrus.FieldLogger
}

// Client knows the job's layout and finds the owners of its shards. It is safe
// for concurrent use; batches and sessions belong to one user each.
type Client struct {
	c      Config
	layout *layout
}

// New returns a client; it does no I/O.
func New(c Config) (*Client, error) {
	l, err := newLayout(c.Parameters)
	if err != nil {
		return nil, err
	}
	return &Client{c: c, layout: l}, nil
}

// NewBatch returns an empty batch.
func (c *Client) NewBatch() *Batch { return newBatch(c.layout) }

// View returns the owners of all shards, waiting until there are such.
func (c *Client) View(ctx context.Context) (membership.View, error) { return membership.View{}, nil }

// Open opens a session under a view in which every shard has an owner.
func (c *Client) Open(ctx context.Context, v membership.View) (*Session, error) { return nil, nil }

// Connect returns a session whose shards all serve. It waits as long as
// needed, backing off after faults.
func (c *Client) Connect(ctx context.Context) (*Session, error) { return nil, nil }

// Identify asks who answers at address.
func Identify(ctx context.Context, n transport.Network, address string) (Identity, error) {
	return Identity{}, nil
}
