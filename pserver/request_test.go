package pserver_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/pserver/ledger"
)

// answered waits until the newest checkpoint of each shard answers a request,
// and returns their numbers.
func (w *world) answered(number int64) []int64 {
	w.t.Helper()
	for range 1000 {
		metas, _, err := checkpoint.ListAll(w.t.Context(), w.client("test"), shards)
		require.NoError(w.t, err)
		var seqs []int64
		for _, ms := range metas {
			var sum ledger.Summary
			if len(ms) > 0 {
				require.NoError(w.t, json.Unmarshal(ms[0].Ledger, &sum))
			}
			if len(ms) > 0 && sum.Request >= number {
				seqs = append(seqs, ms[0].Seq)
			}
		}
		if len(seqs) == shards {
			return seqs
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
	}
	require.Fail(w.t, "the request was not answered")
	return nil
}

// Whoever owns a shard saves it when it is asked to, although nothing has
// changed and no interval is over; so does its next owner.
func TestCheckpointOnRequest(t *testing.T) {
	inWorld(t, options{interval: time.Hour}, func(t *testing.T, w *world) {
		st := w.client("operator")
		w.start("pserver-0")
		gone := w.start("pserver-1")
		ask := func() int64 {
			number, err := checkpoint.Request(t.Context(), st, w.job.Guard())
			require.NoError(t, err)
			return number
		}
		first := ask()
		began := time.Now()
		before := w.answered(first)
		again := ask()
		require.Greater(t, again, first)
		for i, seq := range w.answered(again) {
			require.Greater(t, seq, before[i])
		}
		require.Less(t, time.Since(began), 10*time.Second)

		gone.kill()
		w.answered(ask()) // by the survivor, once it has claimed
		require.NoError(t, checkpoint.Withdraw(t.Context(), st, again), "it was replaced, and stays")
		w.answered(first)
	})
}
