// Package fake is an in-memory store with etcd's semantics.
package fake

import (
	"starfish/internal/clock"
	"starfish/internal/store"
)

// Options of a fake store.
type Options struct{ Clock clock.Clock }

// Store is the fake.
type Store struct{ store.Store }

// New makes an empty store.
func New(o Options) *Store { return nil }

// Compact forgets history below rev.
func (s *Store) Compact(rev int64) {}

// ExpireLease ends a lease now.
func (s *Store) ExpireLease(id store.LeaseID) {}

// ExpireAll ends all leases now.
func (s *Store) ExpireAll() {}

// Revision of the store.
func (s *Store) Revision() int64 { return 0 }

// Client is one process's handle, with faults.
type Client struct{ store.Store }

// Client makes a handle.
func (s *Store) Client(name string) *Client { return nil }

// Fail sets the hook that is asked before each request.
func (c *Client) Fail(hook func(op, key string) error) {}

// FailAfter sets the hook that is asked after each request: its error hides the answer.
func (c *Client) FailAfter(hook func(op, key string) error) {}

// Partition cuts the client off (or heals it).
func (c *Client) Partition(on bool) {}
