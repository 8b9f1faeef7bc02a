package e2e

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forward forwards a port of a pod to this host until the test ends, and returns
// the address. It asks again for a while: a kubelet may refuse a container that
// has only just started.
func (c cluster) forward(t *testing.T, target, port string) string {
	t.Helper()
	var said string
	for range 10 {
		var stderr bytes.Buffer
		cmd := exec.Command("kubectl", "-n", namespace, "port-forward", target, ":"+port)
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if m := address.FindString(line); err == nil && m != "" {
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			return m
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		said = line + stderr.String()
		t.Logf("kubectl port-forward %s: %s", target, said)
		time.Sleep(time.Second)
	}
	require.Fail(t, "no port is forwarded", said)
	return ""
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// A person far from the cluster sees how the job stands: through the ports of etcd
// and of a daemon, and with the tool that is in every pod.
func Test7Status(t *testing.T) {
	c := connect(t)
	c.trial(t, "seen", 400, jobs, func(t *testing.T, j trial) {
		c.awaitRunning(t, "pserver", 2)
		c.awaitRunning(t, "trainer", 2)
		pservers, err := c.running("pserver")
		require.NoError(t, err)
		trainers, err := c.running("trainer")
		require.NoError(t, err)

		out, err := run("", filepath.Join(c.root, "bin/starfish"), "status", "--job", j.name, "--etcd-endpoints", c.forward(t, "pod/etcd-0", "2379"))
		require.NoError(t, err)
		require.Contains(t, out, "training")
		for _, name := range []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1"} {
			require.Contains(t, out, name)
		}
		for path, says := range map[string]string{"/status": `"pserver-0"`, "/readyz": "ok", "/healthz": "ok", "/metrics": "starfish_pserver_shard_batches"} {
			require.Contains(t, fetch(t, "http://"+c.forward(t, "pod/"+pservers["pserver-0"].Metadata.Name, "8080")+path), says)
		}
		require.Contains(t, fetch(t, "http://"+c.forward(t, "pod/"+trainers["trainer-1"].Metadata.Name, "8080")+"/metrics"), "starfish_trainer_queue_todo_chunks")
		inside := c.kubectl(t, "exec", "job/trainer", "--", "starfish", "status")
		require.Contains(t, inside, "pserver-1")
		require.NotContains(t, inside, "does not answer")
		t.Log("\n" + strings.TrimSpace(inside))
	})
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}
