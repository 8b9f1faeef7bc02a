package trainer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store/fake"
	"starfish/job"
)

// members are the processes of a small job, in the order of their start.
var members = []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1"}

func (c *cluster) begin(name string) *process {
	if strings.HasPrefix(name, "pserver") {
		return c.pserver(name)
	}
	return c.trainer(name)
}

// small is a job that takes about a second and a half, with its processes.
func small(t *testing.T, file string) (*cluster, map[string]*process) {
	t.Helper()
	c := slowCluster(t, file, 1)
	c.spec.Checkpoint.Interval = 300 * time.Millisecond
	running := map[string]*process{}
	for _, name := range members {
		running[name] = c.begin(name)
	}
	return c, running
}

// undisturbed is how long the small job takes.
func undisturbed(t *testing.T, file string) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c, _ := small(t, file)
		c.wait()
		took = time.Since(began)
	})
	return took
}

// holds is what the store has under a name: a registration, chunks that are
// Pending, a shard; empty if there is nothing.
func (c *cluster) holds(name string) string {
	prefix := c.prefix()
	dump := c.store.Dump()
	for key, value := range dump {
		key = strings.TrimPrefix(key, prefix)
		registered := key == "pservers/"+name || key == "trainers/"+name
		if registered || strings.HasPrefix(key, "queue/") && strings.Contains(value, `"owner":"`+name+`"`) {
			return key + " = " + value
		}
	}
	if dump[prefix+"owners"] != "" && dump[prefix+job.KeyResult] == "" { // the owners of a job that has ended stay
		for shard, owner := range c.view().Shards {
			if owner.Owned() && owner.Name == name {
				return fmt.Sprintf("shard %d", shard)
			}
		}
	}
	return ""
}

// A process that is asked to stop, at whatever moment of its life and of the
// job's, ends in order and soon. It leaves no registration, no chunk and no
// shard behind, so nobody waits for its lease; and nothing is lost.
func TestStoppedAtAnyMoment(t *testing.T) {
	file, seen := records(t, 300)
	length := undisturbed(t, file)
	for i := range uint64(50) {
		r := rand.New(rand.NewPCG(i, 5))
		name := members[i%4]
		moment := time.Duration(r.Int64N(int64(length)))
		if i < 8 {
			moment = time.Duration(i/4) * time.Millisecond // while it starts
		}
		t.Run(fmt.Sprintf("%s after %v", name, moment), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, running := small(t, file)
				time.Sleep(moment)
				asked := time.Now()
				running[name].cancel()
				<-running[name].done
				require.NoError(t, running[name].err)
				require.Less(t, time.Since(asked), time.Second)
				require.Empty(t, c.holds(name))
				c.begin(name)
				c.wait()
				c.exact(300, seen)
			})
		})
	}
}

// A process is killed in the last second of a job: at a random moment, or just
// before or just after the transaction that ends the job. It is started again;
// the job ends once, and everybody leaves soon.
func TestKilledAtTheEnd(t *testing.T) {
	file, seen := records(t, 300)
	length := undisturbed(t, file)
	check := func(t *testing.T, c *cluster, victim *process) {
		t.Helper()
		killed := time.Now()
		c.kill(victim)
		c.begin(victim.name)
		c.wait()
		require.Less(t, time.Since(killed), 30*time.Second)
		c.exact(300, seen)
	}
	for i := range uint64(50) {
		r := rand.New(rand.NewPCG(i, 6))
		name, before := members[i%4], time.Duration(r.Int64N(int64(time.Second)))
		t.Run(fmt.Sprintf("%s %v before the end", name, before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, running := small(t, file)
				time.Sleep(length - before)
				check(t, c, running[name])
			})
		})
	}
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("the steward as it ends the job, after %v", after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 1)
				struck := make(chan struct{})
				var once sync.Once
				strike := func(op, key string) error {
					if op != "put" || key != c.prefix()+job.KeyResult {
						return nil
					}
					once.Do(func() { close(struck) })
					return errKilled
				}
				c.pserver("pserver-0")
				steward := c.trainerAt("trainer-0", func(client *fake.Client) {
					if after {
						client.FailAfter(strike)
					}
				})
				if !after {
					steward.intercept(strike)
				}
				c.await("the job's end", struck)
				check(t, c, steward)
			})
		})
	}
}
