package storetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"starfish/internal/loopback"
	"starfish/internal/store/embedded"
)

// processVariable asks a test binary to be an etcd instead.
const processVariable = "STORETEST_ETCD"

// ready is what such a process says when it serves.
const ready = "ready"

// Process is an etcd in a process of its own, which can be stopped and killed.
type Process struct {
	Endpoint string

	t   testing.TB
	cmd *exec.Cmd
}

// member is how such a process is told what to be.
type member struct {
	Dir, Name, Client, Peer, Cluster, Token string
}

// ServeIfAsked makes this process an etcd, if it was started by Processes, and
// then does not return. It is the first line of the TestMain of every package that
// uses Processes.
func ServeIfAsked() {
	text := os.Getenv(processVariable)
	if text == "" {
		return
	}
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve is an etcd until its parent ends.
func serve(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	peer, err := url.Parse(m.Peer)
	if err != nil {
		return err
	}
	_, err = embedded.Start(context.Background(), embedded.Config{Dir: m.Dir, ClientURL: m.Client, Tune: func(c *embed.Config) {
		c.Name, c.InitialCluster, c.InitialClusterToken = m.Name, m.Cluster, m.Token
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
		c.TickMs, c.ElectionMs = 50, 500 // for a machine that is busy with tests
	}})
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(ready + "\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// Processes starts a cluster of n members. They are killed at the end of the test.
func Processes(t testing.TB, n int) []*Process {
	t.Helper()
	addresses := free(t, 2*n)
	members := make([]member, n)
	var cluster []string
	for i := range members {
		m := &members[i]
		m.Dir, m.Name, m.Token = t.TempDir(), fmt.Sprintf("member-%d", i), addresses[0]
		m.Client, m.Peer = "http://"+addresses[2*i], "http://"+addresses[2*i+1]
		cluster = append(cluster, m.Name+"="+m.Peer)
	}
	started := make([]*Process, n)
	said := make([]io.Reader, n)
	for i, m := range members {
		m.Cluster = strings.Join(cluster, ",")
		started[i], said[i] = launch(t, m)
	}
	for i := range started {
		line, err := bufio.NewReader(said[i]).ReadString('\n')
		require.NoError(t, err, "%s did not start", members[i].Name)
		require.Equal(t, ready+"\n", line)
	}
	return started
}

func launch(t testing.TB, m member) (*Process, io.Reader) {
	t.Helper()
	text, err := json.Marshal(m)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it may be stopped then
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &Process{Endpoint: strings.TrimPrefix(m.Client, "http://"), t: t, cmd: cmd}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return p, out
}

// free finds n addresses at which nobody listens, and nobody will.
func free(t testing.TB, n int) []string {
	t.Helper()
	var addresses []string
	host := loopback.Host()
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0")) //nolint:forbidigo // only to find a port
		require.NoError(t, err)
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// Stop stops the process as it is: it keeps its connections and says nothing.
func (p *Process) Stop() { p.signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// Kill kills it.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Leads tells whether the member leads its cluster.
func (p *Process) Leads() bool {
	p.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Endpoint}, Logger: zap.NewNop()})
	require.NoError(p.t, err)
	defer func() { _ = c.Close() }()
	status, err := c.Status(p.t.Context(), p.Endpoint)
	require.NoError(p.t, err)
	return status.Leader == status.Header.MemberId
}
