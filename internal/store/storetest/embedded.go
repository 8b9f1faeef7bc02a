// Package storetest tests implementations of store.Store.
package storetest

import (
	"testing"

	"starfish/internal/store"
)

// Embedded gives a test its own part of an embedded etcd.
func Embedded(t testing.TB) store.Store { return nil }

// Endpoints is where the test binary's embedded etcd is.
func Endpoints(t testing.TB) []string { return nil }

// Run runs the conformance suite.
func Run(t *testing.T, open func(t *testing.T) store.Store) {}
