// Package e2e shows jobs on a real Kubernetes. Its tests with a number run one after
// the other, in the order of the files, on the cluster that `make e2e-k8s` starts,
// and are skipped without one; docs/kubernetes.md says what they show. The others
// hold the manifests to what the daemons do.
package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// namespace is that of the development overlay.
const namespace = "starfish-dev"

// records is the number of records of the example's training data.
const records = 32561

// cluster is the cluster that the suite runs on.
type cluster struct {
	root string // of the repository
	base string // of the cluster's files; base/shared holds the checkpoints
	e2e  string // of the scripts that start nodes
}

// connect finds the cluster, or skips the test.
func connect(t *testing.T) cluster {
	t.Helper()
	c := cluster{root: os.Getenv("STARFISH_E2E_ROOT"), base: os.Getenv("BASE"), e2e: os.Getenv("E2E")}
	if c.root == "" || os.Getenv("KUBECONFIG") == "" {
		t.Skip("make e2e-k8s runs this")
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
	})
	return c
}

// report prints what one would look at to understand a failure.
func (c cluster) report(t *testing.T) {
	t.Helper()
	look := func(args ...string) {
		out, err := c.try(args...)
		if err != nil {
			out += err.Error()
		}
		t.Logf("$ kubectl %s\n%s", strings.Join(args, " "), out)
	}
	look("get", "nodes,pods,jobs,statefulsets,deployments,pvc", "-o", "wide")
	look("get", "events", "--sort-by=.lastTimestamp", "-o", `custom-columns=LAST:.lastTimestamp,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message`)
	all, err := c.pods("")
	if err != nil {
		t.Log(err)
	}
	for _, p := range all {
		look("logs", p.Metadata.Name, "--tail=40")
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				look("logs", p.Metadata.Name, "--previous", "--tail=40")
			}
		}
	}
	if out, err := c.starfish("jobs"); err == nil {
		t.Log(out)
	}
	if name, err := c.try("get", "configmap", "job", "-o", "jsonpath={.data.name}"); err == nil && name != "" {
		out, err := c.starfish("status", "--measure", "0", "--job", name)
		t.Log(out, err)
	}
}

// run runs a program; its output, and an error that has what it said.
func run(stdin, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// try runs kubectl in the namespace.
func (cluster) try(args ...string) (string, error) {
	return run("", "kubectl", append([]string{"-n", namespace}, args...)...)
}

// kubectl is try where a failure fails the test.
func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	require.NoError(t, err)
	return out
}

// apply applies a text.
func (c cluster) apply(t *testing.T, yaml string) {
	t.Helper()
	_, err := run(yaml, "kubectl", "-n", namespace, "apply", "-f", "-")
	require.NoError(t, err)
}

// eventually waits until f is true; f says what it saw otherwise. It returns how
// long that took. The bound is generous: it is for what never happens.
func eventually(t *testing.T, what string, f func() (bool, string)) time.Duration {
	t.Helper()
	const bound = 12 * time.Minute
	begun := time.Now()
	var saw string
	for time.Since(begun) < bound {
		var ok bool
		if ok, saw = f(); ok {
			return time.Since(begun)
		}
		time.Sleep(300 * time.Millisecond)
	}
	require.FailNow(t, what+" did not happen", "%s", saw)
	return 0
}

// say notes a time for whoever reads the output.
func say(t *testing.T, what string, d time.Duration) {
	t.Helper()
	t.Logf("%6.1f s  %s", d.Seconds(), what)
}

// pod is what the suite wants to know of a pod.
type pod struct {
	Metadata struct {
		Name              string
		UID               string
		Labels            map[string]string
		DeletionTimestamp *string
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase             string
		PodIP             string
		Conditions        []struct{ Type, Status string }
		ContainerStatuses []struct {
			RestartCount     int
			Image            string
			ContainerID      string
			State, LastState struct {
				Terminated *struct {
					ExitCode int
					Reason   string
				}
			}
		}
	}
}

func (p pod) is(condition string) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// seat is the name of the process in the pod, which a replacement has, too:
// etcd-0, pserver-1, trainer-0. Pods of a Deployment have none: their own name.
func (p pod) seat() string {
	if index, ok := p.Metadata.Labels["batch.kubernetes.io/job-completion-index"]; ok {
		return p.Metadata.Labels["app.kubernetes.io/name"] + "-" + index
	}
	return p.Metadata.Name
}

// runs tells whether the pod is there to stay and ready.
func (p pod) runs() bool {
	return p.Metadata.DeletionTimestamp == nil && p.Status.Phase == "Running" && p.is("Ready")
}

// pods are those of a program: etcd, pserver or trainer; all: empty.
func (c cluster) pods(name string) ([]pod, error) {
	selector := "app.kubernetes.io/part-of=starfish"
	if name != "" {
		selector = "app.kubernetes.io/name=" + name
	}
	out, err := c.try("get", "pods", "-l", selector, "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []pod }
	return list.Items, json.Unmarshal([]byte(out), &list)
}

// running are the pods of a program that run, by seat.
func (c cluster) running(name string) (map[string]pod, error) {
	all, err := c.pods(name)
	seats := map[string]pod{}
	for _, p := range all {
		if p.runs() {
			seats[p.seat()] = p
		}
	}
	return seats, err
}

// awaitRunning waits until n pods of a program run, and no more.
func (c cluster) awaitRunning(t *testing.T, name string, n int) time.Duration {
	t.Helper()
	return eventually(t, fmt.Sprintf("%d of %s run", n, name), func() (bool, string) {
		seats, err := c.running(name)
		return err == nil && len(seats) == n, c.picture() + fmt.Sprint(err)
	})
}

// picture is what an operator would look at first.
func (c cluster) picture() string {
	out, _ := c.try("get", "pods,jobs", "-o", "wide")
	return out
}

// etcd are the endpoints of the members that have an address.
func (c cluster) etcd() (string, error) {
	all, err := c.pods("etcd")
	var endpoints []string
	for _, p := range all {
		if p.runs() {
			endpoints = append(endpoints, "http://"+p.Status.PodIP+":2379")
		}
	}
	if err == nil && len(endpoints) == 0 {
		err = fmt.Errorf("no etcd runs")
	}
	return strings.Join(endpoints, ","), err
}

// starfish runs the operator's tool.
func (c cluster) starfish(args ...string) (string, error) {
	endpoints, err := c.etcd()
	if err != nil {
		return "", err
	}
	return run("", filepath.Join(c.root, "bin/starfish"), append(args, "--etcd-timeout", "10s", "--etcd-endpoints", endpoints)...)
}

// status is what `starfish status -o json` says.
type status struct {
	Phase    string
	Reason   string
	Pass     int
	Progress float64
	Queue    struct{ Complete, Failed, Takes, Requeued, Records int64 }
	Shards   []struct {
		Owner      string
		Generation int64
		Serving    *bool
	}
	Pservers, Trainers []struct{ Name, Version string }
	Result             *struct {
		Records int64
		Test    *struct {
			Records int64
			AUC     float64
		}
		Seconds float64
	}
}

func (c cluster) status(job string) (status, error) {
	var s status
	out, err := c.starfish("status", "-o", "json", "--measure", "0", "--job", job)
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	return s, err
}

// progress waits until the job has completed more chunks than it had.
func (c cluster) progress(t *testing.T, job string) time.Duration {
	t.Helper()
	before := int64(-1)
	return eventually(t, "progress of "+job, func() (bool, string) {
		s, err := c.status(job)
		if err != nil {
			return false, err.Error()
		}
		if before < 0 {
			before = s.Queue.Complete
		}
		return s.Queue.Complete > before || s.Phase != "training", fmt.Sprintf("%+v\n%s", s, c.picture())
	})
}
