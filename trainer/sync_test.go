package trainer_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// synchronous is a cluster whose trainers take each step together.
func synchronous(c *cluster) *cluster {
	c.spec.Train.Mode, c.spec.Train.Window = job.ModeSync, 0
	return c
}

func TestSyncCountsExactly(t *testing.T) {
	file, seen := records(t, 500)
	synctest.Test(t, func(t *testing.T) {
		c := synchronous(newCluster(t, file, ""))
		for _, name := range []string{"pserver-0", "pserver-1"} {
			c.pserver(name)
		}
		for _, name := range []string{"trainer-0", "trainer-1", "trainer-2"} {
			c.trainer(name)
		}
		c.wait()
		c.exact(500, seen)
		require.Equal(t, job.ModeSync, c.result().Mode)
	})
}
