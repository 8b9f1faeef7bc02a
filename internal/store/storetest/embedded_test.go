package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEmbeddedIsOfTheTestAlone(t *testing.T) {
	t0 := time.Now()
	a, b := Embedded(t), Embedded(t)
	t.Log(time.Since(t0))
	_, err := a.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", []byte("1"), 0)}})
	require.NoError(t, err)
	kv, err := store.Lookup(t.Context(), a, "k")
	require.NoError(t, err)
	require.Equal(t, "1", string(kv.Value))
	kv, err = store.Lookup(t.Context(), b, "k")
	require.NoError(t, err)
	require.False(t, kv.Exists())
	t.Log(time.Since(t0))
}
