package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
	"starfish/internal/store/fake"
)

var errCrash = errors.New("crashed")

// TestCrashAtEveryStep stops a shard's owner before each single operation on
// disk and before and after each request to the store, over the life of four
// saves that keep two. Whatever a power cut leaves of the disk, the newest
// listed checkpoint loads, no listed file is missing, and the next owner
// collects what the crash left and goes on.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	steps := run(t, -1, memfs.All)
	require.Greater(t, steps, 30)
	for _, keep := range []memfs.Keep{memfs.Durable, memfs.Names, memfs.All} {
		for stop := range steps {
			t.Run(fmt.Sprintf("%d/%d", keep, stop), func(t *testing.T) {
				t.Parallel()
				run(t, stop, keep)
			})
		}
	}
}

const saves = 4

// run lets the owner work until step number stop (-1: to the end), lets the
// power fail, and checks what its successor finds. It returns the number of steps.
func run(t *testing.T, stop int, keep memfs.Keep) int {
	t.Helper()
	b := setup(t)
	fk := b.st.(*fake.Store)
	victim := fk.Client("victim")
	ctx, crash := context.WithCancelCause(t.Context())
	defer crash(nil)
	step := 0
	hook := func(string, string) error {
		if step++; stop >= 0 && step > stop {
			crash(errCrash)
			return errCrash
		}
		return nil
	}
	b.fs.SetHook(hook)
	victim.Fail(hook)
	victim.FailAfter(hook)

	// Every step after the crash fails too, so nothing is cleaned up or tried
	// again, as with a process that is gone.
	var acknowledged uint64
	doomed := &bundle{fs: b.fs, st: victim, own: b.own}
	for n := uint64(1); n <= saves; n++ {
		if err := doomed.save(ctx, n, 2); err != nil {
			break
		}
		acknowledged = n
	}

	// The successor: another generation, on the disk that is left.
	next := &bundle{fs: b.fs.Crash(keep), st: fk, own: owner(b.own.Shard, 2)}
	next.owners(t, next.own)
	metas := next.list(t)
	n, m, skipped, err := next.load(t)
	require.NoError(t, err)
	require.Empty(t, skipped, "the newest listed checkpoint loads")
	require.GreaterOrEqual(t, n, acknowledged, "what was acknowledged is not lost")
	if len(metas) > 0 {
		require.Equal(t, metas[0].UUID, m.UUID)
		require.True(t, next.view(t).Shards[next.own.Shard].Listed)
	}
	for _, m := range metas {
		require.NoError(t, next.loader().Verify(t.Context(), m), "every listed file is whole")
	}
	require.LessOrEqual(t, len(metas), 2)

	_, err = checkpoint.Collect(t.Context(), next.fs, dir, next.st, next.own)
	require.NoError(t, err)
	want := []string{filepath.Join(dir, "JOB")}
	for _, m := range metas {
		want = append(want, filepath.Join(dir, m.Path))
	}
	require.ElementsMatch(t, want, next.fs.Names(), "the crash's leftovers are collected, nothing else")

	require.NoError(t, next.save(t.Context(), 100, 2))
	n, _, _, err = next.load(t)
	require.NoError(t, err)
	require.EqualValues(t, 100, n)
	return step
}
