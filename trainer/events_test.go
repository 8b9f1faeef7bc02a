package trainer_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/job"
)

// event is a row of the table in docs/operations.md that operators rely on.
type event struct {
	level  string
	fields []string
}

// documented reads the table, or another one behind it.
func documented(t *testing.T, number int) map[string]event {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	tables := strings.Split(string(text), "| event | level | fields |\n|---|---|---|\n")[1:]
	require.Greater(t, len(tables), number)
	table, _, _ := strings.Cut(tables[number], "\n\n")
	quoted := regexp.MustCompile("`([^`]*)`")
	events := make(map[string]event)
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		require.Len(t, cells, 5, row)
		e := event{level: strings.TrimSpace(cells[2])}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			e.fields = append(e.fields, strings.Fields(m[1])...)
		}
		slices.Sort(e.fields)
		events[quoted.FindStringSubmatch(cells[1])[1]] = e
	}
	return events
}

// A job to which everything happens that the table of events names: each is
// logged, at the level and with the fields that are documented. A chunk is bad; a
// pserver is replaced by name; a trainer with chunks in hand dies; a pserver is
// cut off until another has its shards, and is handed some back; and that other one
// is lost in the last moment, while the job drains, so that it goes back to training.
func TestDocumentedEvents(t *testing.T) {
	file, _ := spoiled(t)
	events := documented(t, 0)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.spec.Data.Chunk, c.spec.Train.Passes = badChunkSize, 40
		c.spec.Checkpoint.Interval = time.Second
		c.spec.Queue.Speculate = 0        // a requeue is to be seen
		c.latency = 40 * time.Millisecond // the job lasts
		c.trainer("trainer-0")
		victim := c.trainer("trainer-1")
		cut := c.pserver("pserver-0")
		first := c.pserver("pserver-1")
		logged := func(message string) func() bool {
			return func() bool { return len(c.log.all(message)) > 0 }
		}
		c.until("a quarantine", logged("the chunk is quarantined"))
		c.kill(first)
		second := c.pserver("pserver-1")
		c.until("the turn of a pass", logged("the pass has turned"))
		c.until("chunks in hand", func() bool { return c.holds("trainer-1") != "" })
		c.kill(victim)
		c.until("a requeue", logged("chunks of lost trainers are Todo again"))
		cut.client.Partition(true)
		c.net.Silence(cut.host, true)
		c.heal(3*c.spec.LeaseTTL, cut)
		c.until("a new registration", logged("the lease was lost, registering again"))
		c.until("a shard that was dropped", logged("the shard has another owner, dropping it"))

		phase := func(p etcdqueue.Phase) func() bool { return func() bool { return c.state().Phase == p } }
		require.True(t, phase(etcdqueue.PhaseTraining)(), "it has not ended yet")
		require.Len(t, c.owned(), 1, "one pserver has all shards")
		kept := time.Now()
		c.until("some training", func() bool { return time.Since(kept) > 2*time.Second })
		c.disk.refuseCheckpoints(true)
		c.until("draining", phase(etcdqueue.PhaseDraining))
		c.kill(second)
		c.pserver("pserver-1")
		c.until("training again", phase(etcdqueue.PhaseTraining))
		c.disk.refuseCheckpoints(false)
		c.wait()
		require.Equal(t, etcdqueue.PhaseComplete, c.state().Phase)
		// More often if its shards, whose last checkpoints differ, reopen one after the other.
		require.GreaterOrEqual(t, len(c.log.all("every chunk is dealt with: waiting for the last checkpoints")), 2, "it drained again")

		c.logs(events)
	})
}

// logs requires that each event was logged, as it is documented.
func (c *cluster) logs(events map[string]event) {
	c.t.Helper()
	for message, e := range events {
		lines := c.log.all(message)
		require.NotEmpty(c.t, lines, message)
		for _, l := range lines {
			require.Equal(c.t, e.level, l.level.String(), message)
			fields := maps.Clone(l.data)
			maps.DeleteFunc(fields, func(name string, _ any) bool { return name == "job" || name == "pserver" || name == "trainer" })
			require.Equal(c.t, e.fields, slices.Sorted(maps.Keys(fields)), message)
		}
	}
}

// owned names the owners of the shards.
func (c *cluster) owned() []string {
	c.t.Helper()
	kv, err := store.Lookup(c.ctx, c.store, job.Prefix("test")+"owners")
	require.NoError(c.t, err)
	var names []string
	for _, m := range regexp.MustCompile(`"(?:name|owner)":"([^"]+)"`).FindAllStringSubmatch(string(kv.Value), -1) {
		names = append(names, m[1])
	}
	require.NotEmpty(c.t, names, fmt.Sprint(string(kv.Value)))
	slices.Sort(names)
	return slices.Compact(names)
}
