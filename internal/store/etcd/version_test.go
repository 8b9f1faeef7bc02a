package etcd

import (
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"starfish/internal/store/embedded"
)

func TestTooOld(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"2.3.8": true, "3.4.33": true, "3.5.21": true,
		"3.6.0": false, "3.7.3": false, "3.10.0": false, "4.0.0-rc.1": false, "": false, "unknown": false,
	} {
		require.Equal(t, want, tooOld(version), version)
	}
}

func TestNoWarningOfThisVersion(t *testing.T) {
	t.Parallel()
	srv, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	log, entries := test.NewNullLogger()
	s, err := Dial(t.Context(), Config{Endpoints: []string{"127.0.0.1:1", srv.Endpoints()[0]}, Log: log})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Check(t.Context()))
	status, err := s.client.Status(t.Context(), srv.Endpoints()[0])
	require.NoError(t, err)
	require.NotEmpty(t, status.Version)
	require.Empty(t, entries.AllEntries())
}
