package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	j := c.trial(t, "deletes", passes(1500), jobs)
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
	j.finish(t)
	j.jobsComplete(t)
}

// passes is a number of passes, scaled by STARFISH_E2E_SCALE for machines that are
// much faster or slower than those that the suite was written on.
func passes(n int) int {
	scale := 1.0
	if text := os.Getenv("STARFISH_E2E_SCALE"); text != "" {
		if _, err := fmt.Sscan(text, &scale); err != nil {
			panic(err)
		}
	}
	return max(1, int(float64(n)*scale))
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
	all, err := j.running("")
	require.NoError(t, err)
	require.Contains(t, all, seat)
	node = all[seat].Spec.NodeName
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
	return eventually(t, "others own the shards", func() (bool, string) {
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
	j := c.trial(t, "nodes", passes(2000), jobs)
	node, seats := j.nodeOf(t, "pserver-0")
	t.Logf("         %s has %v", node, seats)
	pid, err := os.ReadFile(filepath.Join(c.base, node+".pid"))
	require.NoError(t, err)
	_, err = run("", "kill", "-9", strings.TrimSpace(string(pid)))
	require.NoError(t, err)
	say(t, "from the death of a node until others own its shards", j.ownedByOthers(t, seats))
	say(t, "until it trains on", j.progress(t, j.name))
	say(t, "until the node is NotReady", eventually(t, "the node is NotReady", func() (bool, string) {
		out, err := c.try("get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && out != "True", out
	}))
	c.kubectl(t, "taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	took := c.awaitRunning(t, "pserver", 2) + c.awaitRunning(t, "trainer", 2)
	say(t, "from the taint out-of-service until pservers and trainers are two again", took)
	j.trains(t)
	c.kubectl(t, "delete", "node", node)
	_, err = run("", filepath.Join(c.e2e, "add-node"), strings.TrimPrefix(node, "node"))
	require.NoError(t, err)
	say(t, "from its return until etcd has three members", c.awaitRunning(t, "etcd", 3))

	for _, d := range []time.Duration{10 * time.Second, 40 * time.Second} {
		j.trains(t)
		c.awaitRunning(t, "pserver", 2)
		node, seats := j.nodeOf(t, "pserver-1")
		t.Logf("         %s has %v", node, seats)
		c.cut(t, node, true)
		cut := time.Now()
		say(t, "from the cut until others own the shards", j.ownedByOthers(t, seats))
		time.Sleep(d - time.Since(cut))
		c.cut(t, node, false)
		say(t, "healed after this", time.Since(cut))
		took := c.awaitRunning(t, "etcd", 3) + c.awaitRunning(t, "pserver", 2) + c.awaitRunning(t, "trainer", 2)
		say(t, "from the healing until all pods are ready", took)
		say(t, "until it trains on", j.progress(t, j.name))
	}
	j.trains(t)
	j.finish(t)
	j.jobsComplete(t)
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
	j := c.trial(t, "evictions", passes(1200), variant{overlay: "dev", pservers: 2, trainers: trainers})
	killed := map[string]bool{}
	for i := range trainers {
		seat := fmt.Sprintf("trainer-%d", i)
		all, err := c.running("trainer")
		require.NoError(t, err)
		p, ok := all[seat]
		require.True(t, ok, c.picture())
		outOfMemory(t, p)
		eventually(t, seat+" is OOMKilled", func() (bool, string) {
			out, err := c.try("get", "pod", p.Metadata.Name, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.reason}")
			return err == nil && out == "OOMKilled", out
		})
		killed[seat] = true
	}
	require.Len(t, killed, trainers)
	say(t, "until five trainers that were OOMKilled were replaced", c.awaitRunning(t, "trainer", trainers))
	j.trains(t)
	for i := range trainers {
		all, err := c.running("trainer")
		require.NoError(t, err)
		p := all[fmt.Sprintf("trainer-%d", i)]
		eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, p.Metadata.Name, namespace)
		_, err = run(eviction, "kubectl", "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+p.Metadata.Name+"/eviction", "-f", "-")
		require.NoError(t, err)
	}
	eventually(t, "the evicted end", func() (bool, string) {
		all, err := c.running("trainer")
		return err == nil && len(all) == 0, c.picture()
	})
	say(t, "until five trainers that were evicted were replaced", c.awaitRunning(t, "trainer", trainers))
	j.trains(t)
	require.Empty(t, c.kubectl(t, "get", "job", "trainer", "-o", "jsonpath={.status.failed}"), "no disruption counts as a failure")
	j.finish(t)
	j.jobsComplete(t)
}

// Jobs are scaled, up and down; a node is drained; and pods that stay are scaled and
// rolled to another image, while the job runs.
func Test5ScaleDrainRoll(t *testing.T) {
	c := connect(t)
	j := c.trial(t, "scale", passes(1200), variant{overlay: "dev", pservers: 2, trainers: 1})
	scale := func(name string, n int) {
		t.Helper()
		c.kubectl(t, "patch", "job", name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"completions":%d,"parallelism":%[1]d}}`, n))
		say(t, fmt.Sprintf("until %d of %s run", n, name), c.awaitRunning(t, name, n))
		j.progress(t, j.name)
	}
	scale("trainer", 20)
	scale("pserver", 4)
	scale("pserver", 2)
	scale("trainer", 3)
	j.trains(t)
	node, seats := j.nodeOf(t, "pserver-0")
	t.Logf("         draining %s, which has %v", node, seats)
	begun := time.Now()
	_, err := run("", "kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
	require.NoError(t, err)
	say(t, "to drain a node", time.Since(begun))
	say(t, "until its pservers and trainers run elsewhere", c.awaitRunning(t, "pserver", 2)+c.awaitRunning(t, "trainer", 3))
	j.trains(t)
	c.kubectl(t, "uncordon", node)
	c.awaitRunning(t, "etcd", 3)
	j.finish(t)
	j.jobsComplete(t)

	j = c.trial(t, "roll", passes(1200), variant{overlay: "services", pservers: 2, trainers: 1})
	c.kubectl(t, "scale", "deployment/trainer", "--replicas=8")
	say(t, "until 8 trainers run", c.awaitRunning(t, "trainer", 8))
	c.kubectl(t, "scale", "statefulset/pserver", "--replicas=4")
	say(t, "until 4 pservers run", c.awaitRunning(t, "pserver", 4))
	c.kubectl(t, "scale", "deployment/trainer", "--replicas=3")
	begun = time.Now()
	c.kubectl(t, "set", "image", "statefulset/pserver", "pserver=localhost/starfish:next")
	c.kubectl(t, "set", "image", "deployment/trainer", "trainer=localhost/starfish:next")
	c.kubectl(t, "rollout", "status", "statefulset/pserver", "--timeout=300s")
	c.kubectl(t, "rollout", "status", "deployment/trainer", "--timeout=300s")
	say(t, "to roll 4 pservers and 3 trainers to another image", time.Since(begun))
	for _, name := range []string{"pserver", "trainer"} {
		all, err := c.running(name)
		require.NoError(t, err)
		for _, p := range all {
			require.Equal(t, "localhost/starfish:next", p.Status.ContainerStatuses[0].Image)
		}
	}
	j.trains(t)
	j.finish(t)
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
