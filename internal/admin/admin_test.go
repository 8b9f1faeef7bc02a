package admin_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves c and returns a function that gets a path.
func start(t *testing.T, c admin.Config) func(path string) (code int, body string) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	c.Log, c.Address = log, "127.0.0.1:0"
	s, err := admin.Listen(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		client.CloseIdleConnections()
	})
	return func(path string) (int, string) {
		r, err := client.Get("http://" + s.Address() + path)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		return r.StatusCode, string(body)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	pushes := prometheus.NewCounter(prometheus.CounterOpts{Name: "starfish_pserver_pushes_total", Help: "Pushes."})
	registry.MustRegister(pushes)
	pushes.Add(3)
	var notReady error
	get := start(t, admin.Config{
		Metrics: registry,
		Ready:   func() error { return notReady },
		Status:  func() any { return map[string]int{"shards": 2} },
	})

	code, body := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n", body)

	code, _ = get("/readyz")
	require.Equal(t, http.StatusOK, code)
	notReady = errors.New("waiting for an owner of shards [3]")
	code, body = get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "waiting for an owner of shards [3]\n", body)
	code, _ = get("/healthz")
	require.Equal(t, http.StatusOK, code, "alive, though not ready")

	code, body = get("/status")
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"shards":2}`, body)

	code, body = get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "starfish_pserver_pushes_total 3")

	code, body = get("/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "goroutine profile")

	code, _ = get("/nothing")
	require.Equal(t, http.StatusNotFound, code)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	get := start(t, admin.Config{})
	for _, path := range []string{"/healthz", "/readyz", "/status", "/metrics"} {
		code, _ := get(path)
		require.Equal(t, http.StatusOK, code, path)
	}
	_, body := get("/status")
	require.JSONEq(t, "{}", body)
}

func TestStatusThatIsNoJSON(t *testing.T) {
	t.Parallel()
	get := start(t, admin.Config{Status: func() any { return math.NaN() }})
	code, body := get("/status")
	require.Equal(t, http.StatusInternalServerError, code)
	require.NotContains(t, body, "goroutine")
}

func TestBadAddress(t *testing.T) {
	t.Parallel()
	_, err := admin.Listen(admin.Config{Address: "256.0.0.1:x"})
	require.Error(t, err)
}
