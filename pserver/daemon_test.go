package pserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJobFromStartToEnd(t *testing.T) {
	t.Parallel()
	inWorld(t, options{passes: 2}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		require.NotEmpty(t, a.owns())
		require.NotEmpty(t, b.owns(), "the shards are shared out")
		w.finish(a, b)
	})
}
