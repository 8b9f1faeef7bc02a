package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trial is a job of the audit model: whatever happens to it, its total is the
// number of records times the number of passes, or something was lost or doubled.
type trial struct {
	cluster
	name   string
	passes int
	begun  time.Time
	over   *bool // it was over before everything had happened to it
}

// nodes of the cluster that deploy/e2e/run starts.
const nodes = 3

// variant are the workloads of a trial.
type variant struct {
	overlay            string // dev or services
	pservers, trainers int
	tag                string // of the image: dev, this tree's, or last, that of the last release
	apart              bool   // one pserver and one trainer at most on a node, so that others have none
}

// run is how many of n processes of one program have a node.
func (v variant) run(n int) int {
	if v.apart {
		return min(n, nodes)
	}
	return n
}

// trial has something happen to a job of that many passes, which ends well. How many
// are enough depends on the machine: a job that is over too early is played again
// with four times as many.
func (c cluster) trial(t *testing.T, name string, passes int, v variant, happens func(t *testing.T, j trial)) {
	t.Helper()
	for again := true; again; passes *= 4 {
		again = false
		t.Run(fmt.Sprintf("%s, %d passes", name, passes), func(t *testing.T) {
			j := c.begin(t, fmt.Sprintf("%s-%d", name, passes), passes, v)
			j.over = &again
			j.trains(t)
			happens(t, j)
			j.finish(t)
			if v.overlay == "dev" {
				c.jobsComplete(t)
			}
		})
	}
}

// begin starts a job of that many passes in the place of the one before; its
// pservers and trainers run when it returns.
func (c cluster) begin(t *testing.T, name string, passes int, v variant) trial {
	t.Helper()
	c.clear(t)
	dir := filepath.Join(c.root, "build/e2e", name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	spec := fmt.Sprintf(`job: %s
data: {train: [/examples/adult/a9a], format: libsvm, chunk: 64KiB}
model: {type: count}
train: {passes: %d, batch: 64}
shards: 8
checkpoint: {dir: /checkpoints/%[1]s, interval: 5s}
lease_ttl: 3s
run: {pservers: %[3]d, trainers: %[4]d}
`, name, passes, v.pservers, v.trainers)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.yaml"), []byte(spec), 0o644))
	kind, size := "Job", "{completions: %d, parallelism: %[1]d}"
	if v.overlay == "services" {
		kind, size = "", "{replicas: %d}"
	}
	patch := func(name string, n int) string {
		k := kind
		if k == "" {
			k = map[string]string{"pserver": "StatefulSet", "trainer": "Deployment"}[name]
		}
		api := map[string]string{"Job": "batch/v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1"}[k]
		apart := ""
		if v.apart {
			apart = fmt.Sprintf(`      - op: add
        path: /spec/template/spec/affinity
        value: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app.kubernetes.io/name: %s}}}]}}
`, name)
		}
		// A silent node is given up after seconds, so that the suite need not wait.
		return fmt.Sprintf(`  - patch: |-
      apiVersion: %s
      kind: %s
      metadata: {name: %s}
      spec: %s
  - target: {kind: %[2]s, name: %[3]s}
    patch: |-
      - {op: replace, path: /spec/template/spec/tolerations/0/tolerationSeconds, value: 2}
      - {op: replace, path: /spec/template/spec/tolerations/1/tolerationSeconds, value: 2}
%[5]s`, api, k, name, fmt.Sprintf(size, n), apart)
	}
	kustomization := fmt.Sprintf(`resources: [../../../deploy/kubernetes/overlays/%s]
generatorOptions: {disableNameSuffixHash: true}
configMapGenerator:
  - {name: job, namespace: %s, behavior: replace, literals: [name=%s], files: [job.yaml]}
images:
  - {name: localhost/starfish, newTag: %s}
patches:
%s%s`, v.overlay, namespace, name, cmp.Or(v.tag, "dev"), patch("pserver", v.pservers), patch("trainer", v.trainers))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644))
	c.kubectl(t, "apply", "-k", dir)
	j := trial{cluster: c, name: name, passes: passes, begun: time.Now()}
	c.awaitRunning(t, "etcd", 3)
	eventually(t, name+" trains", func() (bool, string) {
		s, err := j.status(name)
		return err == nil && len(s.Pservers) == v.run(v.pservers) && len(s.Trainers) == v.run(v.trainers) || s.Phase == "complete", fmt.Sprintf("%+v %v\n%s", s, err, c.picture())
	})
	say(t, "until its processes work", time.Since(j.begun))
	return j
}

// clear removes the processes of the job before; etcd stays.
func (c cluster) clear(t *testing.T) {
	t.Helper()
	c.kubectl(t, "delete", "job/pserver", "job/trainer", "statefulset/pserver", "deployment/trainer", "--ignore-not-found", "--wait=true")
	eventually(t, "the processes of the job before end", func() (bool, string) {
		ps, err := c.pods("pserver")
		ts, e := c.pods("trainer")
		return err == nil && e == nil && len(ps)+len(ts) == 0, c.picture()
	})
}

// trains notes how far the job is. If it has ended, what is to happen next would not
// happen to it: then this trial is over.
func (j trial) trains(t *testing.T) {
	t.Helper()
	var s status
	eventually(t, "an answer about "+j.name, func() (bool, string) {
		var err error
		s, err = j.status(j.name)
		return err == nil, fmt.Sprint(err)
	})
	if s.Phase == "complete" {
		*j.over = true
		t.Skip("the job was over before everything had happened to it: again, with more passes")
	}
	require.Equal(t, "training", s.Phase, s.Reason)
	t.Logf("         %s: pass %d of %d, %d chunks complete, %d requeued", j.name, s.Pass+1, j.passes, s.Queue.Complete, s.Queue.Requeued)
}

// eventually waits for what does not happen any more when the job has ended.
func (j trial) eventually(t *testing.T, what string, f func() (bool, string)) time.Duration {
	t.Helper()
	looked := time.Now()
	return eventually(t, what, func() (bool, string) {
		ok, saw := f()
		if !ok && time.Since(looked) > 15*time.Second {
			looked = time.Now()
			if s, err := j.status(j.name); err == nil && s.Phase == "complete" {
				j.trains(t)
			}
		}
		return ok, saw
	})
}

// awaitRunning waits until n pods of a program run, and no more.
func (j trial) awaitRunning(t *testing.T, name string, n int) time.Duration {
	t.Helper()
	return j.eventually(t, fmt.Sprintf("%d of %s run", n, name), func() (bool, string) {
		seats, err := j.running(name)
		return err == nil && len(seats) == n, j.picture() + fmt.Sprint(err)
	})
}

// awaitSeats waits until pods with those seats run, and returns them in that order.
func (j trial) awaitSeats(t *testing.T, seats ...string) (pods []pod) {
	t.Helper()
	j.eventually(t, fmt.Sprint(seats, " run"), func() (bool, string) {
		pods = nil
		for _, seat := range seats {
			all, err := j.running(seat[:strings.LastIndexByte(seat, '-')])
			if p, ok := all[seat]; ok && err == nil {
				pods = append(pods, p)
			}
		}
		return len(pods) == len(seats), j.picture()
	})
	return pods
}

// delete deletes a pod as `kubectl delete pod` does and waits until another one
// has its seat; what it does not wait for is the first one's end.
func (j trial) delete(t *testing.T, seats ...string) {
	t.Helper()
	old := j.awaitSeats(t, seats...)
	args := []string{"delete", "pod", "--wait=false"}
	for _, p := range old {
		args = append(args, p.Metadata.Name)
	}
	j.kubectl(t, args...)
	took := j.replaced(t, seats, old)
	say(t, fmt.Sprintf("until %s was deleted and ready again", strings.Join(seats, " and ")), took)
}

// replaced waits until other pods than those have the seats.
func (j trial) replaced(t *testing.T, seats []string, old []pod) time.Duration {
	t.Helper()
	return j.eventually(t, fmt.Sprint("others in the place of ", seats), func() (bool, string) {
		for i, seat := range seats {
			all, err := j.running(seat[:strings.LastIndexByte(seat, '-')])
			if p, ok := all[seat]; err != nil || !ok || p.Metadata.UID == old[i].Metadata.UID {
				return false, j.picture()
			}
		}
		return true, ""
	})
}

// finish waits for the end of the job and holds the audit.
func (j trial) finish(t *testing.T) {
	t.Helper()
	// It may take long; only without any progress it takes too long.
	s := status{Phase: "training"}
	for s.Phase == "training" {
		j.progress(t, j.name)
		time.Sleep(time.Second)
		if now, err := j.status(j.name); err == nil {
			s = now
		}
	}
	eventually(t, "the end of "+j.name, func() (bool, string) {
		var err error
		s, err = j.status(j.name)
		return err == nil && s.Phase != "draining", fmt.Sprintf("%+v %v\n%s", s, err, j.picture())
	})
	require.Equal(t, "complete", s.Phase, s.Reason)
	require.Equal(t, int64(records*j.passes), s.Result.Records)
	require.Zero(t, s.Queue.Failed)
	file := filepath.Join(t.TempDir(), "counts.txt")
	_, err := j.starfish("export", "--job", j.name, "--checkpoint-dir", filepath.Join(j.base, "shared", j.name), "-o", file)
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	total := fmt.Sprintf("total\t0\t%d\n", records*j.passes)
	require.Contains(t, string(text), total, "each record once a pass, no more and no less")
	_, err = j.starfish("queue", "audit", "--job", j.name)
	require.NoError(t, err)
	t.Logf("         %s: total is %d = %d records × %d passes; %d takes, %d requeued; %.0f s in all",
		j.name, records*j.passes, records, j.passes, s.Queue.Takes, s.Queue.Requeued, time.Since(j.begun).Seconds())
}

// jobsComplete waits until both Jobs are Complete and no pod is left that runs.
func (c cluster) jobsComplete(t *testing.T) {
	t.Helper()
	took := eventually(t, "both Jobs are Complete", func() (bool, string) {
		for _, name := range []string{"pserver", "trainer"} {
			out, err := c.try("get", "job", name, "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`)
			if err != nil || out != "True" {
				return false, c.picture()
			}
		}
		return true, ""
	})
	say(t, "from the end of the job until both Jobs are Complete", took)
	for _, name := range []string{"pserver", "trainer"} {
		seats, err := c.running(name)
		require.NoError(t, err)
		require.Empty(t, seats, "nothing starts again")
	}
}
