package pserver

import (
	"fmt"
	"math"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

// The parameters of these tests, by number.
const (
	pBias = iota
	pMatrix
	pWeights
	pEmbedding
	pTotal
	pSeen
)

const testLanes = 4

func adagrad() job.OptimizerSettings {
	return job.OptimizerSettings{Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10}
}

func testParameters(shards int) job.Parameters {
	count := job.OptimizerSettings{Type: "count"}
	return job.Parameters{V: 1, Seed: 7, Shards: shards, List: []job.Parameter{
		pBias:      {Name: "bias", Optimizer: adagrad(), Divisor: 4},
		pMatrix:    {Name: "matrix", Shape: []int{5, job.BlockSize - 1}, Init: job.Initializer{Kind: job.InitNormal, Stddev: 0.5}, Optimizer: adagrad(), Divisor: 4},
		pWeights:   {Name: "weights", Sparse: true, Dim: 1, Optimizer: adagrad(), Divisor: 4},
		pEmbedding: {Name: "embedding", Sparse: true, Dim: 3, Bits: 40, Init: job.Initializer{Kind: job.InitUniform, Min: -1, Max: 1}, Optimizer: job.OptimizerSettings{Type: "sgd", LearningRate: 0.5}, Divisor: 1},
		pTotal:     {Name: "total", Optimizer: count, Divisor: 4},
		pSeen:      {Name: "seen", Sparse: true, Dim: 1, Optimizer: count, Divisor: 4},
	}}
}

func newTestShard(t testing.TB, shard, shards int) *Shard {
	t.Helper()
	s, err := NewShard(testParameters(shards), shard, testLanes, ShardOptions{})
	require.NoError(t, err)
	return s
}

// theShard is a shard that holds everything.
func theShard(t testing.TB) *Shard { return newTestShard(t, 0, 1) }

// keysOn returns n keys of a shard, from a key on.
func keysOn(shard, shards, n int, from uint64) (keys []uint64) {
	for k := from; len(keys) < n; k++ {
		if job.ShardOf(k, shards) == shard {
			keys = append(keys, k)
		}
	}
	return keys
}

// values is a sink that is a slice.
type values []float32

func (v *values) Values(n int) []float32 {
	if cap(*v) < n {
		*v = make([]float32, n)
	}
	*v = (*v)[:n]
	for i := range *v {
		(*v)[i] = float32(math.NaN()) // what is not written is seen
	}
	return *v
}

// batches makes pushes that follow each other in one chunk after the other.
type batches struct{ rank, n int64 }

func (b *batches) next(dense []wire.DenseBlock, sparse ...wire.SparseRows) *wire.PushData {
	p := &wire.PushData{Meta: wire.Meta{Rank: b.rank, N: b.n, Token: 1, Records: 4, Loss: 1, Last: b.n == 9}, Dense: dense, Sparse: sparse}
	if b.n++; p.Last {
		b.rank, b.n = b.rank+1, 0
	}
	return p
}

func mustPush(t testing.TB, s *Shard, p *wire.PushData) Outcome {
	t.Helper()
	out, err := s.Push(1, p, nil)
	require.NoError(t, err)
	return out
}

func block(param uint16, block uint32, v ...float32) wire.DenseBlock {
	return wire.DenseBlock{Param: param, Block: block, Values: v}
}

func rows(param uint16, keys []uint64, v ...float32) wire.SparseRows {
	return wire.SparseRows{Param: param, Keys: keys, Values: v}
}

func pullRows(t testing.TB, s *Shard, param uint16, keys ...uint64) []float32 {
	t.Helper()
	var v values
	require.NoError(t, s.Pull(nil, []wire.KeyRef{{Param: param, Keys: keys}}, &v, nil))
	return v
}

func pullBlock(t testing.TB, s *Shard, param uint16, block uint32) []float32 {
	t.Helper()
	var v values
	require.NoError(t, s.Pull([]wire.BlockRef{{Param: param, Block: block}}, nil, &v, nil))
	return v
}

// dump is all that can be seen of a shard: equal dumps are equal models, bit by
// bit, state included.
func dump(t testing.TB, s *Shard) string {
	t.Helper()
	c, err := s.Cut()
	require.NoError(t, err)
	text := fmt.Sprintf("%+v\n", c.ledger)
	digests, sizes := map[string]*xxhash.Digest{}, map[string]int{}
	require.NoError(t, c.WriteTo(func(section string, data []byte) error {
		if section == sectionMeta || section == sectionLedger {
			return nil
		}
		if digests[section] == nil {
			digests[section] = xxhash.New()
		}
		sizes[section] += len(data)
		_, err := digests[section].Write(data)
		return err
	}))
	for _, p := range s.params {
		if name := sectionOf(p); digests[name] != nil {
			text += fmt.Sprintf("%s: %d bytes %x\n", name, sizes[name], digests[name].Sum64())
		}
	}
	return text
}

func totals(s *Shard) ledger.Sums { return s.Stats().Total }
