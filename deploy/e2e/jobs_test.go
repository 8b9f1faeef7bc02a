package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var jobs = variant{overlay: "dev", pservers: 2, trainers: 2}

// The example, as docs/kubernetes.md tells to start it: it trains to its AUC, and
// every pod but those of etcd ends with it.
func Test1Adult(t *testing.T) {
	c := connect(t)
	begun := time.Now()
	_, err := run("", "kubectl", "apply", "-k", filepath.Join(c.root, "deploy/kubernetes/overlays/dev"))
	require.NoError(t, err)
	c.awaitRunning(t, "etcd", 3)
	say(t, "until etcd is ready", time.Since(begun))
	eventually(t, "the job is complete", func() (bool, string) {
		s, err := c.status("adult")
		return err == nil && s.Phase == "complete", fmt.Sprintf("%+v %v\n%s", s, err, c.picture())
	})
	say(t, "from apply until the job is complete", time.Since(begun))
	c.jobsComplete(t)
	s, err := c.status("adult")
	require.NoError(t, err)
	require.Equal(t, int64(5*records), s.Result.Records)
	require.InDelta(t, 0.902, s.Result.Test.AUC, 0.002)
	t.Logf("         AUC %.5f, trained in %.1f s", s.Result.Test.AUC, s.Result.Seconds)
	for _, name := range []string{"pserver", "trainer"} {
		all, err := c.pods(name)
		require.NoError(t, err)
		require.Len(t, all, 2, "no pod was replaced")
		for _, p := range all {
			require.Equal(t, "Succeeded", p.Status.Phase)
		}
	}
}

// Every pod is deleted once, one at a time, then two at a time, the members of etcd
// among them.
func Test2Deletes(t *testing.T) {
	c := connect(t)
	c.trial(t, "deletes", 1200, jobs, func(t *testing.T, j trial) {
		for _, seat := range []string{"etcd-0", "pserver-0", "trainer-0", "etcd-1", "pserver-1", "trainer-1", "etcd-2"} {
			j.delete(t, seat)
		}
		say(t, "until it trains on", j.progress(t, j.name))
		j.trains(t)
		for _, seats := range [][]string{{"etcd-0", "pserver-0"}, {"etcd-1", "etcd-2"}, {"pserver-0", "pserver-1"}, {"trainer-0", "trainer-1"}, {"pserver-1", "trainer-0"}} {
			j.delete(t, seats...)
			say(t, "until it trains on", j.progress(t, j.name))
		}
		j.trains(t)
	})
}

// cut cuts a node off the network, or heals that.
func (c cluster) cut(t *testing.T, node string, off bool) {
	t.Helper()
	number := strings.TrimPrefix(node, "node")
	if off {
		_, err := run("", "ip", "link", "set", "v"+number, "down")
		require.NoError(t, err)
		return
	}
	_, err := run("", "ip", "link", "set", "v"+number, "up")
	require.NoError(t, err)
	_, err = run("", "ip", "route", "replace", "10.244."+number+".0/24", "via", "10.250.0.1"+number)
	require.NoError(t, err)
}

// nodeOf is the node on which a seat is, and the seats that it holds.
func (j trial) nodeOf(t *testing.T, seat string) (node string, seats []string) {
	t.Helper()
	node = j.awaitSeats(t, seat)[0].Spec.NodeName
	all, err := j.running("")
	require.NoError(t, err)
	for name, p := range all {
		if p.Spec.NodeName == node {
			seats = append(seats, name)
		}
	}
	return node, seats
}

// ownedBy waits until every shard has an owner that is not one of those.
func (j trial) ownedByOthers(t *testing.T, lost []string) time.Duration {
	t.Helper()
	return j.eventually(t, "others own the shards", func() (bool, string) {
		s, err := j.status(j.name)
		if err != nil || len(s.Shards) == 0 {
			return false, fmt.Sprint(err)
		}
		for _, shard := range s.Shards {
			for _, seat := range append(lost, "", "(nobody)") {
				if shard.Owner == seat {
					return false, fmt.Sprintf("%+v", s.Shards)
				}
			}
		}
		return true, ""
	})
}

// A node dies whole, with a member of etcd, a pserver and what else was there: the
// job goes on without it, and before Kubernetes has noticed. Then a node is cut off
// for longer than the lease's time to live, and for longer than Kubernetes waits,
// and healed: what was alive there does no harm.
func Test3Nodes(t *testing.T) {
	c := connect(t)
	c.trial(t, "nodes", 800, jobs, func(t *testing.T, j trial) {
		node, seats := j.nodeOf(t, "pserver-0")
		t.Logf("         %s has %v", node, seats)
		pid, err := os.ReadFile(filepath.Join(c.base, node+".pid"))
		require.NoError(t, err)
		_, err = run("", "kill", "-9", strings.TrimSpace(string(pid)))
		require.NoError(t, err)
		returns := sync.OnceFunc(func() {
			c.kubectl(t, "delete", "node", node)
			_, err := run("", filepath.Join(c.e2e, "add-node"), strings.TrimPrefix(node, "node"))
			require.NoError(t, err)
		})
		t.Cleanup(returns)
		say(t, "from the death of a node until others own its shards", j.ownedByOthers(t, seats))
		say(t, "until it trains on", j.progress(t, j.name))
		say(t, "until the node is NotReady", eventually(t, "the node is NotReady", func() (bool, string) {
			out, err := c.try("get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			return err == nil && out != "True", out
		}))
		c.kubectl(t, "taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		took := j.awaitRunning(t, "pserver", 2) + j.awaitRunning(t, "trainer", 2)
		say(t, "from the taint out-of-service until pservers and trainers are two again", took)
		j.trains(t)
		returns()
		say(t, "from its return until etcd has three members", j.awaitRunning(t, "etcd", 3))

		for _, d := range []time.Duration{10 * time.Second, 40 * time.Second} {
			j.trains(t)
			j.awaitRunning(t, "pserver", 2)
			node, seats := j.nodeOf(t, "pserver-1")
			t.Logf("         %s has %v", node, seats)
			c.cut(t, node, true)
			healed := sync.OnceFunc(func() { c.cut(t, node, false) })
			t.Cleanup(healed)
			cut := time.Now()
			say(t, "from the cut until others own the shards", j.ownedByOthers(t, seats))
			time.Sleep(d - time.Since(cut))
			healed()
			say(t, "healed after this", time.Since(cut))
			took := j.awaitRunning(t, "etcd", 3) + j.awaitRunning(t, "pserver", 2) + j.awaitRunning(t, "trainer", 2)
			say(t, "from the healing until all pods are ready", took)
			say(t, "until it trains on", j.progress(t, j.name))
		}
		j.trains(t)
	})
}

// memoryCgroup is the directory of the memory cgroup of a pod's container, as this
// process sees it.
func memoryCgroup(t *testing.T, p pod) string {
	t.Helper()
	_, id, ok := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	require.True(t, ok)
	out, err := run("", "find", "/sys/fs/cgroup/memory", "-type", "d", "-name", id)
	require.NoError(t, err)
	dir := strings.TrimSpace(out)
	require.NotEmpty(t, dir)
	return dir
}

// outOfMemory has the kernel kill the pod's process: something else in its cgroup
// takes all the memory that the pod may have, and the kernel prefers what belongs to
// pods.
func outOfMemory(t *testing.T, p pod) {
	t.Helper()
	dir := memoryCgroup(t, p)
	hog := exec.Command("sh", "-c", "echo $$ >"+dir+"/cgroup.procs && exec tail /dev/zero")
	_ = hog.Run() // it is killed, too
}

// Trainers are killed for lack of memory and evicted, each of five once by each: no
// failure of the job's, whatever the limit of failures is.
func Test4OutOfMemoryAndEvictions(t *testing.T) {
	c := connect(t)
	const trainers = 5
	c.trial(t, "evictions", 800, variant{overlay: "dev", pservers: 2, trainers: trainers}, func(t *testing.T, j trial) {
		var seats []string
		for i := range trainers {
			seats = append(seats, fmt.Sprintf("trainer-%d", i))
		}
		for _, seat := range seats {
			p := j.awaitSeats(t, seat)[0]
			outOfMemory(t, p)
			j.eventually(t, seat+" is OOMKilled", func() (bool, string) {
				out, err := c.try("get", "pod", p.Metadata.Name, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.reason}")
				return err == nil && out == "OOMKilled", fmt.Sprint(out, err)
			})
		}
		say(t, "until five trainers that were OOMKilled were replaced", j.awaitRunning(t, "trainer", trainers))
		j.trains(t)
		old := j.awaitSeats(t, seats...)
		for _, p := range old {
			eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, p.Metadata.Name, namespace)
			_, err := run(eviction, "kubectl", "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+p.Metadata.Name+"/eviction", "-f", "-")
			require.NoError(t, err)
		}
		say(t, "until five trainers that were evicted were replaced", j.replaced(t, seats, old))
		j.trains(t)
		require.Empty(t, c.kubectl(t, "get", "job", "trainer", "-o", "jsonpath={.status.failed}"), "no disruption counts as a failure")
	})
}

// Jobs are scaled, up and down; a node is drained; and pods that stay are scaled and
// rolled from the image of the last release to that of this tree, while the job runs.
func Test5ScaleDrainRoll(t *testing.T) {
	c := connect(t)
	c.trial(t, "scale", 600, variant{overlay: "dev", pservers: 2, trainers: 1}, func(t *testing.T, j trial) {
		scale := func(name string, n int) {
			t.Helper()
			c.kubectl(t, "patch", "job", name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"completions":%d,"parallelism":%[1]d}}`, n))
			say(t, fmt.Sprintf("until %d of %s run", n, name), j.awaitRunning(t, name, n))
			j.progress(t, j.name)
		}
		scale("trainer", 20)
		scale("pserver", 4)
		scale("pserver", 2)
		scale("trainer", 3)
		j.trains(t)
		node, seats := j.nodeOf(t, "pserver-0")
		t.Logf("         draining %s, which has %v", node, seats)
		t.Cleanup(func() { c.kubectl(t, "uncordon", node) })
		begun := time.Now()
		_, err := run("", "kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=720s")
		require.NoError(t, err)
		say(t, "to drain a node", time.Since(begun))
		say(t, "until its pservers and trainers run elsewhere", j.awaitRunning(t, "pserver", 2)+j.awaitRunning(t, "trainer", 3))
		c.kubectl(t, "uncordon", node)
		j.awaitRunning(t, "etcd", 3)
		j.trains(t)
	})
	c.trial(t, "roll", 600, variant{overlay: "services", pservers: 2, trainers: 1, tag: "last"}, func(t *testing.T, j trial) {
		c.kubectl(t, "scale", "deployment/trainer", "--replicas=8")
		say(t, "until 8 trainers run", j.awaitRunning(t, "trainer", 8))
		c.kubectl(t, "scale", "statefulset/pserver", "--replicas=4")
		say(t, "until 4 pservers run", j.awaitRunning(t, "pserver", 4))
		c.kubectl(t, "scale", "deployment/trainer", "--replicas=3")
		j.trains(t)
		c.versions(t, j.name)
		begun := time.Now()
		c.kubectl(t, "set", "image", "statefulset/pserver", "pserver=localhost/starfish:dev")
		c.kubectl(t, "set", "image", "deployment/trainer", "trainer=localhost/starfish:dev")
		c.kubectl(t, "rollout", "status", "statefulset/pserver", "--timeout=720s")
		c.kubectl(t, "rollout", "status", "deployment/trainer", "--timeout=720s")
		say(t, "to roll 4 pservers and 3 trainers from the last release to this tree", time.Since(begun))
		c.versions(t, j.name)
		for _, name := range []string{"pserver", "trainer"} {
			all, err := c.running(name)
			require.NoError(t, err)
			for _, p := range all {
				require.Equal(t, "localhost/starfish:dev", p.Status.ContainerStatuses[0].Image)
			}
		}
		j.trains(t)
	})
	time.Sleep(10 * time.Second)
	for name, n := range map[string]int{"pserver": 4, "trainer": 3} {
		all, err := c.running(name)
		require.NoError(t, err)
		require.Len(t, all, n, "they stay, ready")
		for _, p := range all {
			require.Zero(t, p.Status.ContainerStatuses[0].RestartCount, "and nothing starts again")
		}
	}
}

// versions notes which versions of starfish work in a job.
func (c cluster) versions(t *testing.T, job string) {
	t.Helper()
	s, err := c.status(job)
	require.NoError(t, err)
	for _, p := range append(s.Pservers, s.Trainers...) {
		t.Logf("         %s is of %s", p.Name, p.Version)
	}
}

// More is wanted than there are nodes for: the job begins with what has one, and
// whoever gets a node only at the end, when the others are gone, ends at once.
func Test8Pending(t *testing.T) {
	c := connect(t)
	c.trial(t, "pending", 200, variant{overlay: "dev", pservers: 4, trainers: 5, apart: true}, func(t *testing.T, j trial) {
		j.progress(t, j.name)
		for name, n := range map[string]int{"pserver": 4, "trainer": 5} {
			j.awaitRunning(t, name, nodes)
			all, err := c.pods(name)
			require.NoError(t, err)
			require.Len(t, all, n)
			for _, p := range all {
				require.Equal(t, p.runs(), p.Status.Phase != "Pending", p.Metadata.Name)
			}
		}
		j.trains(t)
	})
}
