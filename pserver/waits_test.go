package pserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// At the start a pserver says for how many others it waits, and does not wait
// for ever.
func TestWaitsForThePserversToCome(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 3}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		const text = "for pservers: 2 of 3 are registered: pserver-0 pserver-1"
		w.eventually("both say so", func() bool { return a.Status().Waiting == text && b.Status().Waiting == text })
		require.Empty(t, a.owns())
		w.serving(a, b)
		require.Empty(t, a.Status().Waiting)
		w.finish(a, b)
	})
}
