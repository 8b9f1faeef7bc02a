package pserver

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"starfish/pserver/optimizer"
)

// gather is the yardstick of a lookup: values of an array at places that are
// known.
func gather(dst []float32, from []float32, places []uint32) {
	for i, at := range places {
		dst[i] = from[at]
	}
}

// Looking up 32k random keys in a table of 10 million rows of dim 1, and reading
// their weights, next to a gather of as many random values from an array of 10
// million. It also reports the table's bytes a key besides the row's values, and
// how long the push that took longest to add 3,000 rows held the shard, all in
// processor time.
func BenchmarkLookup(b *testing.B) {
	const n, perMessage, perPush = 10_000_000, 32 << 10, 3000
	tab := testTable(b, 0, 1)
	keys, rows, longest := make([]uint64, perPush), make([]uint32, perPush), int64(0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for tab.rows.N < n {
		for i := range keys {
			keys[i] = uint64(tab.rows.N+i) * 7
		}
		before := threadTime()
		tab.create(keys, nones(rows))
		longest = max(longest, threadTime()-before)
	}
	rng, array := rand.New(rand.NewPCG(1, 2)), make([]float32, n)
	for i := range array {
		array[i] = 1
	}
	values, keys, rows := make([]float32, perMessage), make([]uint64, perMessage), make([]uint32, perMessage)
	places := make([]uint32, perMessage)
	var lookup, gathered int64
	for b.Loop() {
		for i := range keys {
			keys[i], places[i] = rng.Uint64N(n)*7, uint32(rng.Uint64N(n))
		}
		before := cpuTime()
		gather(values, array, places)
		between := cpuTime()
		if bad := tab.find(keys, rows); bad >= 0 {
			b.Fatal(bad)
		}
		tab.read(values, keys, rows)
		lookup, gathered = lookup+cpuTime()-between, gathered+between-before
		if rows[0] == optimizer.None {
			b.Fatal("a row is missing")
		}
	}
	per := float64(b.N) * perMessage
	b.ReportMetric(float64(lookup)/per, "ns/lookup")
	b.ReportMetric(float64(gathered)/per, "ns/gather")
	b.ReportMetric(float64(lookup)/float64(gathered), "lookup/gather")
	b.ReportMetric(float64(tab.bytes())/float64(tab.rows.N)-8, "bytes/key")
	b.ReportMetric(float64(longest)/1e6, "longest-ms")
	b.ReportMetric(0, "ns/op")
}
