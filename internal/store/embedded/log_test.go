package embedded

import (
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestBridge(t *testing.T) {
	t.Parallel()
	log, entries := test.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	closing := new(atomic.Bool)
	z := bridge(log, closing, newBreakage()).With(zap.String("member", "a"))
	z.Info("started")
	require.Empty(t, entries.AllEntries())
	z.Warn("slow", zap.Int("millis", 7))
	require.Equal(t, logrus.DebugLevel, entries.LastEntry().Level)
	require.Equal(t, logrus.Fields{"part": "etcd", "member": "a", "millis": int64(7)}, entries.LastEntry().Data)
	z.Error("broken")
	require.Equal(t, logrus.ErrorLevel, entries.LastEntry().Level)
	require.Equal(t, "broken", entries.LastEntry().Message)
	require.NoError(t, z.Sync())

	entries.Reset()
	closing.Store(true)
	z.Error("listener closed")
	bridge(nil, closing, newBreakage()).Error("nobody hears it")
	require.Empty(t, entries.AllEntries())
}

func TestANewDirectoryIsNoError(t *testing.T) {
	t.Parallel()
	log, entries := test.NewNullLogger()
	log.SetLevel(logrus.InfoLevel)
	l := bridge(log, new(atomic.Bool), nil)
	l.Error(newDirectory)
	require.Empty(t, entries.AllEntries())
	l.Error("something else")
	require.Len(t, entries.AllEntries(), 1)
}
